"""The parts of the application that handlers use, and lookups by the ids of a path."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web

from rung import api
from rung.gateway.downloads.integrity import Integrity
from rung.gateway.problem import Problem, not_found, unavailable
from rung.gateway.projections.experiment import Checkpoint, Experiment, Trial
from rung.gateway.projections.read_models import Ambiguous, ReadModels
from rung.gateway.series import Series
from rung.gateway.settings import Settings
from rung.gateway.streams.feed import Feeds
from rung.ledger import Ledger
from rung.runtime import FactWriter
from rung.runtime.levels import InstallationLevel
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


@dataclass(slots=True)
class Context:
    """The parts that an application is made of."""

    ledger: Ledger
    store: ObjectStore
    writer: FactWriter
    models: ReadModels
    settings: Settings
    parts: Parts
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server goes down, so that streams end."""
    integrity: Integrity = field(init=False)
    """Checks the files of checkpoints before they are sent."""
    level: InstallationLevel = field(init=False)
    """That of new experiments, and of pools that somebody uses."""
    feeds: Feeds = field(init=False)
    """Of the streams that clients follow."""
    locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock]
    )
    """By idempotency key, of requests that are being answered."""

    def __post_init__(self) -> None:
        """Make the parts that follow from others."""
        self.integrity = Integrity(self.store)
        self.level = InstallationLevel(self.ledger)
        self.feeds = Feeds(self.ledger)

    def need_series(self) -> Series:
        """Return the series.

        Raises:
            Problem: there are none here.
        """
        if self.parts.series is None:
            raise unavailable("this server keeps no curves and logs; ask the one that does")
        return self.parts.series


CONTEXT: Final = web.AppKey("context", Context)
_EXPERIMENTS: Final = "`rung list` and GET /api/v1/experiments list them"


def context_of(request: web.Request) -> Context:
    """Return what the request's application is made of."""
    return request.app[CONTEXT]


async def experiment_of(request: web.Request, *, validations: int | None = None) -> Experiment:
    """Return the experiment that the path names, by its id or an unambiguous beginning of it.

    Args:
        request: whose path it is.
        validations: as in `ReadModels.experiment`.

    Raises:
        Problem: there is none, or several.
    """
    return await _experiment(request, request.match_info["experiment_id"], validations)


async def experiment_id_of(request: web.Request) -> str:
    """Return the id of the experiment that the path names.

    Raises:
        Problem: there is none, or several.
    """
    return await find_id(request, request.match_info["experiment_id"])


async def find_id(request: web.Request, name: str) -> str:
    """Return the id of an experiment, of which `name` is an unambiguous beginning.

    Raises:
        Problem: there is none, or several.
    """
    try:
        found = await context_of(request).models.find_id(name)
    except Ambiguous as error:
        raise _ambiguous("experiment", name, error) from None
    if found is None:
        raise missing(request, "experiment", name, _EXPERIMENTS)
    return found


async def _experiment(request: web.Request, name: str, validations: int | None) -> Experiment:
    models = context_of(request).models
    found = await models.experiment(await find_id(request, name), validations=validations)
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


async def trial_of(request: web.Request) -> tuple[Experiment, Trial]:
    """Return the trial that the path names with all its validations, and its experiment.

    Raises:
        Problem: there is none, or several.
    """
    name = request.match_info["trial_id"]
    prefix, dot, index = name.rpartition(".")
    if not dot:
        raise not_found("trial", name, "a trial's id is EXPERIMENT.INDEX, such as k3f9x2ma.17")
    number = int(index) if index.isascii() and index.isdigit() and len(index) <= 9 else None
    experiment = await _experiment(request, prefix, number)
    trial = experiment.trial(f"{experiment.id}.{index}")
    if trial is None:
        count = len(experiment.trials)
        raise missing(
            request, "trial", name, f"experiment {experiment.id} has {count} trials so far"
        )
    return experiment, trial


async def checkpoint_of(request: web.Request) -> tuple[Experiment, Checkpoint]:
    """Return the checkpoint that the path names, and its experiment.

    Raises:
        Problem: there is none, or several.
    """
    name = request.match_info["checkpoint_id"]
    try:
        found = await context_of(request).models.find_checkpoint(name)
    except Ambiguous as error:
        raise _ambiguous("checkpoint", name, error) from None
    if found is None:
        hint = "`rung checkpoints ID` and GET /api/v1/experiments/ID/checkpoints list those of ID"
        raise missing(request, "checkpoint", name, hint)
    return found


def _ambiguous(what: str, name: str, error: Ambiguous) -> Problem:
    detail = f"several {what}s begin with {name[:100]!r}: {error}; give more of the id"
    return Problem(409, "ambiguous", detail)


def reply(answer: msgspec.Struct, *, status: int = 200, **headers: str) -> web.Response:
    """Return an answer as JSON."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(answer),
        content_type="application/json",
        headers={"Cache-Control": "no-store", **headers},
    )
