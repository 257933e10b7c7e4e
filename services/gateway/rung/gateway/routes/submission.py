"""Submitting an experiment."""

import asyncio
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any, Final

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
from rung.gateway.context import Context, context_of, reply
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiments import ExperimentProjection
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.upload import Parts, read_body, read_parts
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
from rung.gateway.submission import ids
from rung.gateway.submission.feasibility import known_shortage
from rung.gateway.submission.warm_start import Start, resolve_start
from rung.storage import ObjectStore

_SEED_MAX: Final = 2**31


async def validate_experiment(request: web.Request) -> web.Response:
    """Check an experiment file and fill in its defaults, without submitting it."""
    read_query(request, NoQuery)
    context = context_of(request)
    config = _load(await read_body(request, context.settings.config_bytes_max))
    await resolve_start(context.models, config.expanded())
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
    """Return what the author should know of the file, and of the agents that are to train it.

    What they could not place is accepted all the same, for agents come and go.
    """
    wanted = config.settings.resources
    lack = known_shortage(context.models, wanted.resource_pool, wanted.slots_per_trial)
    return config.warnings if lack is None else [*config.warnings, f"resources: {lack}"]


async def _submit(
    context: Context,
    key: str | None,
    parts: Parts,
    config: ExperimentConfig,
    code: CodeArchive | None,
) -> str:
    """Put an experiment on record, unless its key says that it is there already."""
    source = parts.config.decode()
    digest = code.digest if code else None
    experiment_id, known = await ids.choose(context.models, context.ledger.id, key)
    if known is None:
        fields = config.expanded()
        start = await resolve_start(context.models, fields)
        if code is not None:
            await asyncio.to_thread(_store, context.store, f"code/{code.digest}.tar.gz", code.data)
            # The checkpoint may have been retired meanwhile.
            start = await resolve_start(context.models, fields)
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
    start: Start | None,
    level: int,
) -> list[Event]:
    """Return what goes on record: the checkpoint that it starts from is pinned first."""
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


def _check_code(parts: Parts, most: int) -> CodeArchive | None:
    if parts.code is None:
        return None
    try:
        return check_archive(parts.code, max_bytes=most)
    except InvalidCode as error:
        item = ProblemItem(path="code", message=str(error))
        raise Problem(422, "invalid-code", str(error), errors=[item]) from None


def _check_paths(config: ExperimentConfig, code: CodeArchive | None) -> None:
    """Refuse what would not be found among the code: the entrypoint's script, data.

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
    """Store once what is named by its digest."""
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
