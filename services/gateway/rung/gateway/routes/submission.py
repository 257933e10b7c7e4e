"""Submitting an experiment: its file and code are checked, and it goes on record under a new id.

It may start from a checkpoint of another experiment, which is pinned first.
"""

import asyncio
import hashlib
import secrets
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.api import ProblemItem
from rung.config import ExperimentConfig
from rung.config.code_folder import CodeArchive, InvalidCode, check_archive
from rung.config.errors import nearest
from rung.config.policy import resolve
from rung.config.problem import shortened
from rung.config.run_config import run_config
from rung.config.secret import hide
from rung.config.sections.data import missing_sources
from rung.config.sections.entrypoint import missing_script
from rung.events import Event
from rung.events.checkpoint import CheckpointPinned
from rung.events.experiment import DEFAULT, ExperimentSubmitted, Submission
from rung.gateway.access.authorization import VIEW, Access, access_of
from rung.gateway.access.place import UNCATEGORIZED, Names, Place, UnknownPlace, find_place
from rung.gateway.code_sweep import code_name
from rung.gateway.context import (
    Context,
    check_caught_up,
    context_of,
    experiment_of,
    find_id,
    reply,
)
from rung.gateway.experiment_file.file_problems import refused
from rung.gateway.experiment_file.policies import place_named, resolved, template_of
from rung.gateway.experiment_file.secrets import check_named, same_file, taken_out
from rung.gateway.feasibility import known_shortage
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import Experiment, checkpoint_phase
from rung.gateway.projections.experiments import ExperimentProjection
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.requests.pins import pin
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
from rung.gateway.routes.directory.storage_area import area_of
from rung.gateway.serializers.experiments import newest_checkpoint, submission_of
from rung.storage import ObjectMissing, ObjectStore

_START: Final = "checkpoint.download"
"""The permission to start from a checkpoint."""
LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no i, l, o, u."""
_ID_LENGTH: Final = 8
_PINS_MAX: Final = 3
"""Checkpoints of a trial that are pinned in turn while each is retired just before."""


class _Start(NamedTuple):
    """A checkpoint to start from."""

    experiment_id: str
    checkpoint_id: str
    area: str
    """The storage area that it lies in; empty: none."""


async def validate_experiment(request: web.Request) -> web.Response:
    """Check an experiment file and fill in its defaults, without submitting it."""
    read_query(request, NoQuery)
    context = context_of(request)
    access = access_of(request)
    text = await read_body(request, context.settings.config_bytes_max)
    place = _place(access, *place_named(text))
    _, config = resolved(context, text, place)
    await check_named(context, access, place, config.settings.secrets)
    await _resolve_start(context.models, config.expanded(), access)
    warnings = await _warnings(context, config)
    return reply(api.Validated(config=hide(config.expanded()), warnings=warnings))


class SubmitQuery(Struct, forbid_unknown_fields=True):
    """Where the experiment comes from."""

    parent: (
        Annotated[
            str,
            Meta(min_length=1, max_length=500, description="the experiment that it was made from"),
        ]
        | None
    ) = None
    workspace: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=500,
                description="where it goes, by name or id; else as its file says, else where"
                " `parent` is",
            ),
        ]
        | None
    ) = None
    project: (
        Annotated[
            str, Meta(min_length=1, max_length=500, description="of the workspace, by name or id")
        ]
        | None
    ) = None
    template: (
        Annotated[str, Meta(min_length=1, description="of the workspace, merged with the file")]
        | None
    ) = None


def _merged(
    context: Context, text: bytes, place: Place, template: str | None
) -> tuple[str, ExperimentConfig]:
    """Return the file that is kept, merged with a template if one is named, and what it says.

    Raises:
        Problem: it cannot be run, or exceeds a constraint; there is no such template.
    """
    named = template_of(context, place.workspace_id, template) if template else None
    _, config = resolved(context, text, place, template=named)
    if named is None:
        return text.decode(), config
    return resolve(text, template=named).text(), config


async def submit_experiment(request: web.Request) -> web.Response:
    """Take in an experiment and its code."""
    query = read_query(request, SubmitQuery)
    parent = None
    if query.parent is not None:
        parent = await find_id(request, query.parent, needs=VIEW)
    context, key, access = context_of(request), key_of(request), access_of(request)
    settings = context.settings
    with tempfile.TemporaryDirectory(prefix="rung-upload-") as folder:
        parts = await read_parts(
            request,
            Path(folder),
            config=settings.config_bytes_max,
            code=settings.code_bytes_max,
        )
        place = await _chosen_place(context, access, query, parts.config, parent)
        source, config = _merged(context, parts.config, place, query.template)
        code = await asyncio.to_thread(_check_code, parts, settings.code_bytes_max)
    _check_paths(config, code)
    async with once(context, key):
        proposal = Proposal(
            source=source,
            config=config,
            code_digest=code.digest if code else None,
            parent=parent,
            code=code.data if code else None,
            place=place,
        )
        experiment_id = await put_on_record(context, key, proposal, access)
    url = f"/api/v1/experiments/{experiment_id}"
    warnings = await _warnings(context, config)
    accepted = api.Submitted(experiment_id=experiment_id, url=url, warnings=warnings)
    return reply(accepted, status=201, Location=url)


async def _chosen_place(
    context: Context,
    access: Access,
    query: SubmitQuery,
    file: bytes,
    parent: str | None,
) -> Place:
    """Return where an experiment goes: as asked for, as its file says, or where its parent is.

    Raises:
        Problem: the file cannot be read; there is no such place for the principal, or it may
            submit nothing there.
    """
    workspace, project = (name or UNCATEGORIZED for name in place_named(file))
    if parent is not None:
        origin = await context.models.experiment(parent, validations=None)
        if origin is not None:
            before = submission_of(origin).config
            if (before.get("workspace"), before.get("project")) == (workspace, project):
                workspace, project = Names(access).place_of(origin)
    if query.workspace is not None:
        return _place(access, query.workspace, query.project)
    return _place(access, workspace, query.project or project)


def _place(access: Access, workspace: str | None, project: str | None) -> Place:
    """Return a place of the experiment file.

    Raises:
        Problem: there is no such place for the principal, or it may submit nothing there.
    """
    try:
        return find_place(access, workspace, project)
    except UnknownPlace as error:
        raise refused(
            [ProblemItem(path=error.field, message=str(error), value=error.value[:100])]
        ) from None


async def read_code(context: Context, experiment: Experiment) -> bytes | None:
    """Return an experiment's code archive, checked against its digest; None: it has no code.

    Raises:
        Problem: the archive is missing or damaged.
    """
    digest = submission_of(experiment).code_digest
    if digest is None:
        return None
    try:
        data = await asyncio.to_thread(context.store.read, code_name(digest))
    except ObjectMissing:
        detail = f"the code of experiment {experiment.id} is not in the object store any more"
        raise Problem(410, "gone", detail) from None
    if await asyncio.to_thread(_sha256, data) != digest:
        detail = f"the code of experiment {experiment.id} is damaged in the object store"
        raise Problem(409, "damaged", detail)
    return data


async def fetch_code(request: web.Request) -> web.Response:
    """Send the code archive of an experiment, checked against its digest."""
    read_query(request, NoQuery)
    context, experiment = context_of(request), await experiment_of(request)
    digest = submission_of(experiment).code_digest
    data = await read_code(context, experiment)
    if data is None:
        raise Problem(404, "no-code", f"experiment {experiment.id} was submitted without code")
    headers = {"Cache-Control": "no-store", "ETag": f'"{digest}"'}
    return web.Response(body=data, content_type="application/gzip", headers=headers)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def _warnings(context: Context, config: ExperimentConfig) -> list[str]:
    """Return warnings about the file, and about agents that are too small for it.

    What they could not place is accepted all the same, for agents come and go.
    """
    wanted = config.settings.resources
    lack = known_shortage(context.models, wanted.resource_pool, wanted.slots_per_trial)
    return config.warnings if lack is None else [*config.warnings, f"resources: {lack}"]


class Proposal(NamedTuple):
    """An experiment that was checked, to be put on record."""

    source: str
    config: ExperimentConfig
    code_digest: str | None
    parent: str | None = None
    code: bytes | None = None
    """The archive of that digest; None: it has no code."""
    place: Place = Place(DEFAULT, DEFAULT)


async def _store_code(context: Context, proposal: Proposal) -> None:
    if proposal.code is not None:
        assert proposal.code_digest is not None
        name = code_name(proposal.code_digest)
        await asyncio.to_thread(_store, context.store, name, proposal.code)


async def put_on_record(
    context: Context, key: str | None, proposal: Proposal, access: Access
) -> str:
    """Put an experiment on record, unless its key shows that it is there already."""
    experiment_id, known = await _choose_id(context.models, context.ledger.id, key)
    if known is None:
        fields = proposal.config.expanded()
        await check_named(context, access, proposal.place, proposal.config.settings.secrets)
        await _resolve_start(context.models, fields, access)
        await _store_code(context, proposal)
        # The checkpoint may have been retired meanwhile.
        start = await _pinned_start(context, key, fields, access, experiment_id)
        level = await context.level.read()
        upgrade = pool_upgrade(context, fields["resources"]["resource_pool"], level)
        workspace_id = proposal.place.workspace_id
        fields, source = await taken_out(
            context, experiment_id, workspace_id, fields, proposal.source
        )
        kept = proposal._replace(source=source)
        submitted = _submitted(context, key, experiment_id, fields, kept, start, level, access)
        stored = run_config(fields)
        await asyncio.to_thread(_store, context.store, stored.name, stored.data)
        await write(context, [*upgrade, submitted])
        # An experiment that had the same code may have been deleted meanwhile.
        await _store_code(context, proposal)
        known = await context.models.experiment(experiment_id, validations=None)
    else:
        await read_from(context, ExperimentProjection, experiment_id)
    if key is not None and known is not None:
        await _check_same(context, known, key, proposal)
    return experiment_id


def _submitted(  # noqa: PLR0913, PLR0917 - what makes a submission
    context: Context,
    key: str | None,
    experiment_id: str,
    fields: dict[str, Any],
    proposal: Proposal,
    start: _Start | None,
    level: int,
    access: Access,
) -> Event:
    """Return the fact of a submission; the checkpoint that it starts from is pinned."""
    area = area_of(context, proposal.place.workspace_id)
    areas = {experiment_id: area} if area else {}
    if start is not None:
        if start.area:
            areas[start.experiment_id] = start.area
        fields["searcher"]["source_checkpoint_uuid"] = start.checkpoint_id
        fields["searcher"]["source_trial_id"] = None
    submitted = ExperimentSubmitted(
        experiment_id=experiment_id,
        config=fields,
        source=proposal.source,
        code_digest=proposal.code_digest,
        submission=Submission(
            owner=access.principal.name,
            workspace=Names(access).workspace(proposal.place.workspace_id),
            weight=fields["resources"]["weight"],
            time_ms=time.time_ns() // 1_000_000,
        ),
        level=level,
        config_digest=run_config(fields).digest,
        parent=proposal.parent,
        workspace_id=proposal.place.workspace_id,
        project_id=proposal.place.project_id,
        owner=access.principal.on_behalf_of or access.principal.user_id,
        areas=areas,
    )
    return stamp(context, key, submitted)


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


async def _resolve_start(
    models: ReadModels, config: dict[str, Any], access: Access
) -> _Start | None:
    """Return the checkpoint that an experiment starts from, None if from scratch.

    What the principal does not see is not there; of what it sees it must be allowed to download
    the checkpoints, for it may read in the trials what they hold.

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
        return await _of_checkpoint(models, str(checkpoint_id), access)
    return await _of_trial(models, str(trial_id), access) if trial_id else None


def _check_start(access: Access, experiment: Experiment, what: str) -> None:
    workspace_id = access.workspace_of(experiment.project_id)
    access.check(_START, workspace_id, f"starting from {what} of experiment {experiment.id}")


async def _pinned_start(
    context: Context,
    key: str | None,
    config: dict[str, Any],
    access: Access,
    experiment_id: str,
) -> _Start | None:
    """Return the checkpoint that an experiment starts from, which is pinned; None: from scratch.

    A trial may have its newest checkpoint retired at that moment: then the next one is pinned.

    Raises:
        Problem: as `_resolve_start` has them; or what it names was retired meanwhile, or it is
            not decided whether it stays.
    """
    search: dict[str, Any] = config["searcher"]
    gone = ""
    for _ in range(_PINS_MAX):
        start = await _resolve_start(context.models, config, access)
        if start is None:
            return None
        pinned = CheckpointPinned(
            experiment_id=start.experiment_id, checkpoint_id=start.checkpoint_id, by=experiment_id
        )
        refused = await pin(context, key, pinned)
        _, found = await context.models.checkpoint(start.checkpoint_id) or (None, None)
        if not refused and found is not None and checkpoint_phase(found) == "stored":
            return start
        gone = start.checkpoint_id
    by_id = bool(search.get("source_checkpoint_uuid"))
    raise _no_start(
        "searcher.source_checkpoint_uuid" if by_id else "searcher.source_trial_id",
        f"checkpoint {gone} was retired while the experiment was submitted; choose"
        " one that is stored",
        str(search["source_checkpoint_uuid"] if by_id else search["source_trial_id"]),
    )


async def _of_checkpoint(models: ReadModels, checkpoint_id: str, access: Access) -> _Start:
    path = "searcher.source_checkpoint_uuid"
    seen = access.visible(_START)
    experiment, found = await models.checkpoint(checkpoint_id, seen) or (None, None)
    if experiment is None or found is None:
        raise _no_start(
            path, "there is no such checkpoint; give the whole id of one", checkpoint_id
        )
    _check_start(access, experiment, "a checkpoint")
    phase = checkpoint_phase(found)
    if phase != "stored":
        raise _no_start(path, f"this checkpoint is {phase}; choose one that is stored", found.id)
    return _Start(experiment.id, found.id, submission_of(experiment).area)


async def _of_trial(models: ReadModels, trial_id: str, access: Access) -> _Start:
    path = "searcher.source_trial_id"
    experiment = await models.experiment(trial_id.rpartition(".")[0], validations=None)
    seen = access.visible(_START)
    if experiment is not None and seen is not None and experiment.project_id not in seen:
        experiment = None
    if experiment is not None and experiment.hidden is not None:
        experiment = None
    if experiment is None or experiment.trial(trial_id) is None:
        raise _no_start(path, "there is no such trial; give an id such as k3f9x2ma.17", trial_id)
    _check_start(access, experiment, "a trial")
    newest = newest_checkpoint(experiment, trial_id)
    if newest is None:
        raise _no_start(path, "this trial has no checkpoint left; choose another", trial_id)
    return _Start(experiment.id, newest.id, submission_of(experiment).area)


def _no_start(path: str, message: str, value: str) -> Problem:
    return refused([ProblemItem(path=path, message=message, value=value[:100])])


async def _check_same(context: Context, known: Experiment, key: str, proposal: Proposal) -> None:
    """Refuse a key that stands for another submission.

    Raises:
        Problem: it does.
    """
    first = known.submission
    asked = (key, proposal.code_digest, proposal.parent)
    if (
        first is None
        or (first.origin, first.code_digest, first.parent) != asked
        or not await same_file(context, first.config, first.source, proposal.source)
    ):
        raise reused(
            f"stands for experiment {known.id}, which was submitted with another file or other"
            " code; draw a new key for another experiment"
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
        f"data.sources.{name}": ("is", place)
        for name, place in missing_sources(fields["data"] or {}, code).items()
    }
    script = missing_script(fields["entrypoint"], code)
    if script is not None:
        missing["entrypoint"] = ("runs", script)
    items = [
        ProblemItem(path=path, message=f"{verb} {shortened(file)}, but {_lacking(file, code)}")
        for path, (verb, file) in missing.items()
    ]
    if items:
        raise refused(items)


def _lacking(path: str, code: CodeArchive | None) -> str:
    """Return why a file is not there, and what to do."""
    close = None if code is None else nearest(path, sorted(code.names))
    if close is not None:
        return f"it is not among the code; did you mean `{close}`?"
    there = "no code was submitted" if code is None else "it is not among the code"
    return (
        f"{there}; submit the folder that it lies in along with this file"
        " (`rung submit FILE FOLDER`)"
    )


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
        query=SubmitQuery,
        body=Body(
            "multipart/form-data",
            {
                "config": "the experiment file, YAML",
                "code": "the code folder as a tar.gz",
            },
            ("config",),
        ),
        idempotent=True,
        problems=(404, 409, 413, 415, 422),
        needs="experiment.create",
        about="workspace",
    ),
    Route(
        "GET",
        "/experiments/{experiment_id}/code",
        fetch_code,
        "Fetch an experiment's code as it ran, as a tar.gz",
        media_type="application/gzip",
        problems=(404, 409, 410),
        needs="experiment.view",
    ),
    Route(
        "POST",
        "/experiments/validate",
        validate_experiment,
        "Check an experiment file and fill in its defaults",
        api.Validated,
        body=Body("application/yaml"),
        problems=(413, 422),
        needs="experiment.create",
        about="workspace",
    ),
)
