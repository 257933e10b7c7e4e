"""Submitting an experiment: its file and code are checked, and it goes on record under a new id.

It may start from a checkpoint of another experiment, which is pinned first.
"""

import asyncio
import hashlib
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiohttp import web

from rung import api
from rung.api import ProblemItem
from rung.config import ExperimentConfig, InvalidExperimentFile, load
from rung.config.code_folder import CodeArchive, InvalidCode, check_archive
from rung.config.run_config import run_config
from rung.config.sections.data import missing_sources
from rung.config.sections.entrypoint import missing_script
from rung.events import Event
from rung.events.checkpoint import CheckpointPinned
from rung.events.errors import InvalidConfig
from rung.events.experiment import ExperimentSubmitted, Submission
from rung.gateway.context import Context, check_caught_up, context_of, reply
from rung.gateway.feasibility import known_shortage
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiments import ExperimentProjection
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.upload import Upload, read_body, read_parts
from rung.gateway.requests.writes import (
    key_of,
    once,
    pool_upgrade,
    read_from,
    reused,
    stamp,
    write,
)
from rung.gateway.route import Body, Route
from rung.gateway.serializers.experiments import checkpoint_at, checkpoint_phase
from rung.storage import ObjectStore

_SEED_MAX: Final = 2**31
LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no i, l, o, u."""
_ID_LENGTH: Final = 8


class _Start(NamedTuple):
    """A checkpoint to start from."""

    experiment_id: str
    checkpoint_id: str


async def validate_experiment(request: web.Request) -> web.Response:
    """Check an experiment file and fill in its defaults, without submitting it."""
    read_query(request, NoQuery)
    context = context_of(request)
    config = _load(await read_body(request, context.settings.config_bytes_max))
    await _resolve_start(context.models, config.expanded())
    warnings = await _warnings(context, config)
    return reply(api.Validated(config=config.expanded(), warnings=warnings))


async def submit_experiment(request: web.Request) -> web.Response:
    """Take in an experiment and its code."""
    read_query(request, NoQuery)
    context, key = context_of(request), key_of(request)
    settings = context.settings
    with tempfile.TemporaryDirectory(prefix="rung-upload-") as folder:
        parts = await read_parts(
            request,
            Path(folder),
            config=settings.config_bytes_max,
            code=settings.code_bytes_max,
        )
        config = _load(parts.config)
        code = await asyncio.to_thread(_check_code, parts, settings.code_bytes_max)
    _check_paths(config, code)
    async with once(context, key):
        experiment_id = await _submit(context, key, parts, config, code)
    url = f"/api/v1/experiments/{experiment_id}"
    warnings = await _warnings(context, config)
    accepted = api.Submitted(experiment_id=experiment_id, url=url, warnings=warnings)
    return reply(accepted, status=201, Location=url)


async def _warnings(context: Context, config: ExperimentConfig) -> list[str]:
    """Return warnings about the file, and about agents that are too small for it.

    What they could not place is accepted all the same, for agents come and go.
    """
    wanted = config.settings.resources
    lack = known_shortage(context.models, wanted.resource_pool, wanted.slots_per_trial)
    return config.warnings if lack is None else [*config.warnings, f"resources: {lack}"]


async def _submit(
    context: Context,
    key: str | None,
    parts: Upload,
    config: ExperimentConfig,
    code: CodeArchive | None,
) -> str:
    """Put an experiment on record, unless its key shows that it is there already."""
    source = parts.config.decode()
    digest = code.digest if code else None
    experiment_id, known = await _choose_id(context.models, context.ledger.id, key)
    if known is None:
        fields = config.expanded()
        start = await _resolve_start(context.models, fields)
        if code is not None:
            await asyncio.to_thread(_store, context.store, f"code/{code.digest}.tar.gz", code.data)
            # The checkpoint may have been retired meanwhile.
            start = await _resolve_start(context.models, fields)
        level = await context.level.read()
        upgrade = pool_upgrade(context, fields["resources"]["resource_pool"], level)
        facts = _facts(context, key, experiment_id, fields, source, digest, start, level)
        stored = run_config(fields)
        await asyncio.to_thread(_store, context.store, stored.name, stored.data)
        await write(context, [*upgrade, *facts])
        known = await context.models.experiment(experiment_id, validations=None)
    else:
        await read_from(context, ExperimentProjection, experiment_id)
    if key is not None and known is not None:
        _check_same(known, key, source, digest)
    return experiment_id


def _facts(  # noqa: PLR0913, PLR0917 - what makes a submission
    context: Context,
    key: str | None,
    experiment_id: str,
    fields: dict[str, Any],
    source: str,
    digest: str | None,
    start: _Start | None,
    level: int,
) -> list[Event]:
    """Return the facts of a submission: the checkpoint that it starts from is pinned first."""
    facts: list[Event] = []
    if start is not None:
        pinned = CheckpointPinned(
            experiment_id=start.experiment_id, checkpoint_id=start.checkpoint_id, by=experiment_id
        )
        facts.append(stamp(context, key, pinned))
        fields["searcher"]["source_checkpoint_uuid"] = start.checkpoint_id
        fields["searcher"]["source_trial_id"] = None
    submitted = ExperimentSubmitted(
        experiment_id=experiment_id,
        config=fields,
        source=source,
        code_digest=digest,
        submission=Submission(
            workspace=fields["workspace"],
            weight=fields["resources"]["weight"],
            time_ms=time.time_ns() // 1_000_000,
        ),
        level=level,
        config_digest=run_config(fields).digest,
    )
    facts.append(stamp(context, key, submitted))
    return facts


async def _choose_id(
    models: ReadModels, ledger_id: str, origin: str | None
) -> tuple[str, Experiment | None]:
    """Return an id that no other experiment has, and the experiment if it is there already.

    With an origin (of an idempotency key) it follows from that, so that the same key gives the
    same id also when nobody knows whether the first request was written.
    """
    attempt = 0
    while True:
        chosen = _derived(f"{ledger_id}|{origin}|{attempt}") if origin else _drawn()
        known = await models.experiment(chosen, validations=None)
        if known is None:
            return chosen, None
        if origin and known.submission is not None and known.submission.origin == origin:
            return chosen, known
        attempt += 1


def _drawn() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(_ID_LENGTH))


def _derived(text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=_ID_LENGTH).digest()
    return "".join(LETTERS[byte % len(LETTERS)] for byte in digest)


async def _resolve_start(models: ReadModels, config: dict[str, Any]) -> _Start | None:
    """Return the checkpoint that an experiment starts from, None if from scratch.

    Raises:
        Problem: what it names is not there, or no longer; or this server still catches up: then
            a checkpoint that it shows may be retired.
    """
    search: dict[str, Any] = config["searcher"]
    checkpoint_id = search.get("source_checkpoint_uuid")
    trial_id = search.get("source_trial_id")
    if checkpoint_id or trial_id:
        check_caught_up(models)
    if checkpoint_id:
        return await _of_checkpoint(models, str(checkpoint_id))
    return await _of_trial(models, str(trial_id)) if trial_id else None


async def _of_checkpoint(models: ReadModels, checkpoint_id: str) -> _Start:
    path = "searcher.source_checkpoint_uuid"
    experiment, found = await models.checkpoint(checkpoint_id) or (None, None)
    if experiment is None or found is None:
        raise _no_start(
            path, "there is no such checkpoint; give the whole id of one", checkpoint_id
        )
    phase = checkpoint_phase(found)
    if phase != "stored":
        raise _no_start(path, f"this checkpoint is {phase}; choose one that is stored", found.id)
    return _Start(experiment.id, found.id)


async def _of_trial(models: ReadModels, trial_id: str) -> _Start:
    path = "searcher.source_trial_id"
    experiment = await models.experiment(trial_id.rpartition(".")[0], validations=None)
    if experiment is None or experiment.trial(trial_id) is None:
        raise _no_start(path, "there is no such trial; give an id such as k3f9x2ma.17", trial_id)
    newest = checkpoint_at(experiment, trial_id, None)
    if newest is None:
        raise _no_start(path, "this trial has no checkpoint left; choose another", trial_id)
    return _Start(experiment.id, newest.id)


def _no_start(path: str, message: str, value: str) -> Problem:
    return refused([ProblemItem(path=path, message=message, value=value[:100])])


def _check_same(known: Experiment, key: str, source: str, digest: str | None) -> None:
    """Refuse a key that stands for another submission.

    Raises:
        Problem: it does.
    """
    first = known.submission
    if first is None or (first.origin, first.source, first.code_digest) != (key, source, digest):
        raise reused(
            f"stands for experiment {known.id}, which was submitted with another file or other"
            " code; draw a new key for another experiment"
        )


def _load(text: bytes) -> ExperimentConfig:
    try:
        return load(text, today_seed=secrets.randbelow(_SEED_MAX))
    except InvalidExperimentFile as error:
        items = [
            ProblemItem(path=item.path, message=item.message, value=item.value, line=item.line)
            for item in error.details
        ]
        raise refused(items) from None
    except InvalidConfig as error:
        items = [ProblemItem(path=path, message=text) for path, text in error.problems]
        raise refused(items) from None


def refused(items: list[ProblemItem]) -> Problem:
    """Return the problem of an experiment file that cannot be run."""
    count = "one problem" if len(items) == 1 else f"{len(items)} problems"
    lines = "; ".join(f"{item.path}: {item.message}".removeprefix(": ") for item in items[:3])
    return Problem(
        422, "invalid-experiment", f"the experiment file has {count}: {lines}", errors=items
    )


def _check_code(parts: Upload, most: int) -> CodeArchive | None:
    if parts.code is None:
        return None
    try:
        return check_archive(parts.code, max_bytes=most)
    except InvalidCode as error:
        item = ProblemItem(path="code", message=str(error))
        raise Problem(422, "invalid-code", str(error), errors=[item]) from None


def _check_paths(config: ExperimentConfig, code: CodeArchive | None) -> None:
    """Refuse a script or data that are not among the code.

    Raises:
        Problem: it would not.
    """
    fields = config.expanded()
    missing = {
        f"data.sources.{name}": f"is {place}"
        for name, place in missing_sources(fields["data"] or {}, code).items()
    }
    script = missing_script(fields["entrypoint"], code)
    if script is not None:
        missing["entrypoint"] = f"runs {script}"
    there = "no code was submitted" if code is None else "it is not among the code"
    items = [
        ProblemItem(
            path=path,
            message=f"{what}, but {there}; submit the folder that it lies in along with this file "
            "(`rung submit FILE FOLDER`)",
        )
        for path, what in missing.items()
    ]
    if items:
        raise refused(items)


def _store(store: ObjectStore, name: str, data: bytes) -> None:
    """Store an object that is named by its digest, once."""
    if not any(info.name == name for info in store.list(name)):
        store.put_bytes(name, data)


ROUTES: Final = (
    Route(
        "POST",
        "/experiments",
        submit_experiment,
        "Submit an experiment",
        api.Submitted,
        status=201,
        body=Body(
            "multipart/form-data",
            {
                "config": "the experiment file, YAML",
                "code": "the code folder as a tar.gz",
            },
            ("config",),
        ),
        idempotent=True,
        problems=(413, 415, 422),
    ),
    Route(
        "POST",
        "/experiments/validate",
        validate_experiment,
        "Check an experiment file and fill in its defaults",
        api.Validated,
        body=Body("application/yaml"),
        problems=(413, 422),
    ),
)
