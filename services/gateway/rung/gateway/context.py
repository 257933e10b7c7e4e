"""The parts of the application that handlers use, and lookups by the ids of a path."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web

from rung import api
from rung.gateway.access.authorization import access_of, forbidden
from rung.gateway.directory.directory import Directory
from rung.gateway.downloads.integrity import Integrity
from rung.gateway.estimate.time_left import TimeLeft
from rung.gateway.problem import Problem, not_found, unavailable
from rung.gateway.projections.experiment import Checkpoint, Deletion, Experiment, Hidden, Trial
from rung.gateway.projections.experiments import (
    ExperimentProjection,
    TrialPage,
    TrialSelection,
    deletion_of,
)
from rung.gateway.projections.read_models import Ambiguous, ReadModels
from rung.gateway.series import Series
from rung.gateway.settings import Settings
from rung.gateway.streams.feed import Feeds
from rung.gateway.streams.sight import Sight
from rung.ledger import Ledger
from rung.runtime import FactWriter
from rung.runtime.levels import InstallationLevel
from rung.secrets.secret_store import SecretStore
from rung.storage import ObjectStore

Audit = Callable[[str], Awaitable[api.Audit]]
"""Decides an experiment's decisions again and compares."""
PolicyOf = Callable[[str, Mapping[str, Any]], object]
"""Checks a scheduling policy's name and options; raises `InvalidConfig`."""

Readers = Mapping[tuple[str, str], api.ReaderKind]
"""Readers that retry or drop messages on request: name and topic → kind."""


class Parts(NamedTuple):
    """What other services add to the gateway; a route whose part is missing answers 503."""

    series: Series | None = None
    """Curves and logs."""
    audit: Audit | None = None
    policy_of: PolicyOf | None = None
    """Checks a scheduling policy."""
    readers: Readers | None = None
    problems: Callable[[], Sequence[str]] = list
    """Returns what the operator should look at, for the status."""
    disk: Callable[[], Awaitable[api.DiskUse]] | None = None
    """Returns what is used of the disk; None where the parts are on several machines."""


@dataclass(slots=True)
class Context:
    """The parts that an application is made of."""

    ledger: Ledger
    store: ObjectStore
    writer: FactWriter
    models: ReadModels
    settings: Settings
    parts: Parts
    secrets: SecretStore | None = None
    """Encrypted values; None where the installation has no key for them."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server goes down, so that streams end."""
    integrity: Integrity = field(init=False)
    """Checks the files of checkpoints before they are sent."""
    level: InstallationLevel = field(init=False)
    """That of new experiments, and of pools that somebody uses."""
    directory: Directory = field(init=False)
    """Users, rights, workspaces; as far as they are decided."""
    feeds: Feeds = field(init=False)
    """Of the streams that clients follow."""
    time_left: TimeLeft = field(init=False)
    """Forecasts of pools."""
    sight: Sight = field(init=False)
    """Cuts streams whose experiments are out of sight."""
    locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock]
    )
    """By idempotency key, of requests that are being answered."""

    def __post_init__(self) -> None:
        """Make the parts that follow from others."""
        self.integrity = Integrity(self.store)
        self.level = InstallationLevel(self.ledger)
        self.directory = Directory(self.ledger)
        self.feeds = Feeds(self.ledger)
        self.time_left = TimeLeft(self.models)
        self.sight = Sight(self.models, self.directory)

    def need_series(self) -> Series:
        """Return the series.

        Raises:
            Problem: there are none here.
        """
        if self.parts.series is None:
            raise unavailable("this server keeps no curves and logs; ask the one that does")
        return self.parts.series

    def need_secrets(self) -> SecretStore:
        """Return the store of encrypted values.

        Raises:
            Problem: the installation has no key for them.
        """
        if self.secrets is None:
            raise Problem(
                422,
                "no-secrets-key",
                "the experiment file has secrets, and this installation has no key to encrypt"
                " them: its operator sets RUNG_SECRETS_KEY for gateways and agents"
                " (docs/SECRETS.md)",
            )
        return self.secrets


CONTEXT: Final = web.AppKey("context", Context)
_EXPERIMENTS: Final = "`rung list` and GET /api/v1/experiments list them"


def context_of(request: web.Request) -> Context:
    """Return what the request's application is made of."""
    return request.app[CONTEXT]


async def experiment_of(
    request: web.Request, *, validations: int | None = None, deleted: bool = False
) -> Experiment:
    """Return the experiment that the path names, as `find_id` reads it.

    Args:
        request: whose path it is.
        validations: as in `ReadModels.experiment`.
        deleted: whether it may be deleted.

    Raises:
        Problem: there is none, or several, or it is deleted.
    """
    name = request.match_info["experiment_id"]
    return await find_experiment(request, name, validations, deleted=deleted)


async def head_of(request: web.Request) -> Experiment:
    """Return the experiment that the path names without its trials, checkpoints and requests.

    Raises:
        Problem: there is none, or several, or it is deleted.
    """
    found = await context_of(request).models.head(await experiment_id_of(request))
    if found is None:  # its file is being rebuilt
        raise missing(request, "experiment", request.match_info["experiment_id"], _EXPERIMENTS)
    return found


async def trials_of(request: web.Request, selection: TrialSelection) -> TrialPage:
    """Return some trials of the experiment that the path names.

    Raises:
        Problem: there is none, or several, or it is deleted.
    """
    found = await context_of(request).models.trials(await experiment_id_of(request), selection)
    if found is None:  # its file is being rebuilt
        raise missing(request, "experiment", request.match_info["experiment_id"], _EXPERIMENTS)
    return found


async def experiment_id_of(request: web.Request, *, deleted: bool = False) -> str:
    """Return the id of the experiment that the path names.

    Args:
        request: whose path it is.
        deleted: whether it may be deleted.

    Raises:
        Problem: there is none, or several, or it is deleted.
    """
    return await find_id(request, request.match_info["experiment_id"], deleted=deleted)


async def find_id(
    request: web.Request, reference: str, *, deleted: bool = False, needs: str | None = None
) -> str:
    """Return the id of an experiment, by that id, an unambiguous beginning of it, or its name.

    Args:
        request: that names it.
        reference: to it.
        deleted: whether it may be deleted.
        needs: the permission on it; that of the route if not given.

    Raises:
        Problem: there is none for the principal, or several, or it is deleted, or the permission
            is lacking.
    """
    models, access = context_of(request).models, access_of(request)
    needs = access.needs if needs is None else needs
    try:
        found = await models.find_id(reference, access.visible(needs), hidden=deleted)
    except Ambiguous as error:
        raise _ambiguous("experiment", reference, error) from None
    if found is None:
        near = " or ".join(await models.near(reference, access.seen))
        hint = f"did you mean {near}?" if near else _EXPERIMENTS
        raise missing(request, "experiment", reference, hint)
    await _check(request, found, needs, f"experiment {found}")
    if not deleted:
        known = await context_of(request).models.read(ExperimentProjection, deletion_of, found)
        if known is not None:
            raise gone(found, known)
    return found


async def _check(request: web.Request, experiment_id: str, needs: str, what: str) -> None:
    """Refuse what the principal may not do to an experiment that it sees.

    Raises:
        Problem: it lacks the permission.
    """
    access = access_of(request)
    if access.projects_with(needs) is None:
        return
    projects = await context_of(request).models.projects_of([experiment_id])
    if not access.may_in(needs, projects.get(experiment_id, "")):
        raise forbidden(needs, what)


def gone(experiment_id: str, deletion: Deletion | Hidden) -> Problem:
    """Return the problem of an experiment that is deleted, perhaps not for good yet."""
    if isinstance(deletion, Hidden):
        detail = (
            f"experiment {experiment_id} was deleted at {deletion.at}; until"
            f" {deletion.until} `rung restore {experiment_id}` takes that back"
        )
        return Problem(410, "restorable", detail)
    then = "" if deletion.done else ", and its files are being removed"
    detail = (
        f"experiment {experiment_id} was deleted at {deletion.at}{then}; its record is in the"
        " ledger, where `rung audit` decides it again"
    )
    return Problem(410, "deleted" if deletion.done else "deleting", detail)


async def find_experiment(
    request: web.Request, name: str, validations: int | None = None, *, deleted: bool = False
) -> Experiment:
    """Return the experiment that a reference names, as `find_id` reads it.

    Args:
        request: that names it.
        name: the reference.
        validations: as in `ReadModels.experiment`.
        deleted: whether it may be deleted.

    Raises:
        Problem: there is none, or several, or it is deleted.
    """
    models = context_of(request).models
    experiment_id = await find_id(request, name, deleted=deleted)
    found = await models.experiment(experiment_id, validations=validations)
    if found is None:  # its file is being rebuilt
        raise missing(request, "experiment", name, _EXPERIMENTS)
    return found


def missing(request: web.Request, what: str, name: str, hint: str) -> Problem:
    """Return the problem of an id that nothing has, or not yet while projections catch up."""
    behind = context_of(request).models.behind()
    if behind is not None:
        return unavailable(f"there is no {what} {name[:100]!r} so far; this server is {behind}")
    return not_found(what, name, hint)


def check_caught_up(models: ReadModels) -> None:
    """Refuse for now what cannot be checked until the projections have caught up.

    Raises:
        Problem: they have not.
    """
    behind = models.behind()
    if behind is not None:
        raise unavailable(f"this server cannot tell yet whether that can be; it is {behind}")


def check_whole(models: ReadModels) -> None:
    """Refuse for now what is about all there is, where the projections may have only a part.

    Raises:
        Problem: so it is.
    """
    if not models.whole:
        raise unavailable(f"this server cannot tell yet what there is; it is {models.behind()}")


async def trial_of(request: web.Request) -> tuple[Experiment, Trial]:
    """Return the trial that the path names with all its validations, and its experiment.

    Raises:
        Problem: there is none, or several.
    """
    return await find_trial(request, request.match_info["trial_id"])


async def find_trial(request: web.Request, reference: str) -> tuple[Experiment, Trial]:
    """Return the trial that a reference names, EXPERIMENT.INDEX, and its experiment.

    Raises:
        Problem: there is none, or several.
    """
    prefix, dot, index = reference.rpartition(".")
    if not dot:
        hint = "a trial's id is EXPERIMENT.INDEX, such as k3f9x2ma.17"
        raise not_found("trial", reference, hint)
    number = int(index) if index.isascii() and index.isdigit() and len(index) <= 9 else None
    experiment = await find_experiment(request, prefix, number)
    trial = experiment.trial(f"{experiment.id}.{index}")
    if trial is None:
        count = len(experiment.trials)
        hint = (
            f"experiment {experiment.id} has {count} {'trial' if count == 1 else 'trials'} so far"
        )
        raise missing(request, "trial", reference, hint)
    return experiment, trial


async def checkpoint_of(request: web.Request) -> tuple[Experiment, Checkpoint]:
    """Return the checkpoint that the path names, and its experiment.

    Raises:
        Problem: there is none, or several.
    """
    return await find_checkpoint(request, request.match_info["checkpoint_id"])


async def find_checkpoint(
    request: web.Request, name: str, *, needs: str | None = None
) -> tuple[Experiment, Checkpoint]:
    """Return the checkpoint that a reference names, and its experiment.

    Args:
        request: that names it.
        name: the reference.
        needs: the permission on it; that of the route if not given.

    Raises:
        Problem: there is none, or several.
    """
    access = access_of(request)
    needs = access.needs if needs is None else needs
    try:
        visible = access.visible(needs)
        found = await context_of(request).models.find_checkpoint(name, visible)
    except Ambiguous as error:
        raise _ambiguous("checkpoint", name, error) from None
    if found is None:
        hint = "`rung checkpoints ID` and GET /api/v1/experiments/ID/checkpoints list those of ID"
        raise missing(request, "checkpoint", name, hint)
    experiment, checkpoint = found
    await _check(request, experiment.id, needs, f"checkpoint {checkpoint.id}")
    return found


async def show_pins(request: web.Request, *checkpoints: api.Checkpoint) -> None:
    """Leave of the experiments that pin checkpoints those that the principal sees."""
    seen = access_of(request).seen
    if seen is None:
        return
    names = [by for each in checkpoints for by in each.pinned_by]
    projects = await context_of(request).models.projects_of(names) if names else {}
    for each in checkpoints:
        each.pinned_by = [by for by in each.pinned_by if projects.get(by) in seen]


def _ambiguous(what: str, name: str, error: Ambiguous) -> Problem:
    detail = f"{name[:100]!r} may be any of these {what}s: {error}; give more of the id"
    if what == "experiment" and not any(each.startswith(name) for each in error.ids):
        detail = (
            f"{name[:100]!r} is the name of several experiments, the newest first: {error}; give"
            " the id of one"
        )
    return Problem(409, "ambiguous", detail)


def reply(answer: msgspec.Struct, *, status: int = 200, **headers: str) -> web.Response:
    """Return an answer as JSON."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(answer),
        content_type="application/json",
        headers={"Cache-Control": "no-store", **headers},
    )
