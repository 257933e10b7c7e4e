"""Requests to pause, resume, cancel or kill an experiment, or to kill one of its trials.

The answer means that the request is on record; the searcher decides what follows from it. A
request for the present state is no error; one that is no longer possible is.
"""

from typing import Final, Literal

from aiohttp import web

from rung import api
from rung.events.experiment import (
    CancelRequested,
    KillRequested,
    PauseRequested,
    ResumeRequested,
)
from rung.events.trial import TrialKillRequested, trial_id_of
from rung.gateway.context import Context, context_of, experiment_of, reply, trial_of
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import Experiment, phase_of
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.writes import is_repeated_of, key_of, once, stamp, write
from rung.gateway.route import Handler, Route

Control = Literal["pause", "resume", "cancel", "kill"]

_FACTS: Final[
    dict[Control, type[PauseRequested | ResumeRequested | CancelRequested | KillRequested]]
] = {
    "pause": PauseRequested,
    "resume": ResumeRequested,
    "cancel": CancelRequested,
    "kill": KillRequested,
}
_DONE: Final[dict[Control, str]] = {
    "pause": "paused",
    "resume": "resumed",
    "cancel": "canceled",
    "kill": "killed",
}


def _handler(control: Control, name: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        read_query(request, NoQuery)
        context, key = context_of(request), key_of(request)
        async with once(context, key):
            experiment = await experiment_of(request)
            await ask(context, key, experiment, control)
        return reply(api.Requested(experiment_id=experiment.id, requested=control), status=202)

    handler.__name__ = name
    return handler


async def ask(context: Context, key: str | None, experiment: Experiment, control: Control) -> None:
    """Put a request on record, unless its key shows that it is there.

    Raises:
        Problem: it is no longer possible.
    """
    if not await is_repeated_of(context, key, experiment, control):
        check_phase(experiment, _DONE[control], until_end=control in {"cancel", "kill"})
        fact = _FACTS[control](experiment_id=experiment.id)
        await write(context, [stamp(context, key, fact)])


async def kill_trial(request: web.Request) -> web.StreamResponse:
    """End one trial at once; its search goes on without it."""
    read_query(request, NoQuery)
    context, key = context_of(request), key_of(request)
    async with once(context, key):
        experiment, trial = await trial_of(request)
        trial_id = trial_id_of(experiment.id, trial.index)
        if not await is_repeated_of(context, key, experiment, f"kill trial {trial_id} of"):
            if trial.closed is not None:
                detail = f"trial {trial_id} has ended ({trial.closed}); it cannot be killed"
                raise Problem(409, "ended", detail)
            check_phase(experiment, "killed", until_end=True)
            fact = TrialKillRequested(experiment_id=experiment.id, trial_id=trial_id)
            await write(context, [stamp(context, key, fact)])
    return reply(api.TrialAsked(trial_id=trial_id, requested="kill"), status=202)


def check_phase(experiment: Experiment, done: str, *, until_end: bool = False) -> None:
    """Refuse a request that is no longer possible.

    Args:
        experiment: that it is about.
        done: what it asks to have done, as a participle.
        until_end: whether it is possible until the experiment has ended.

    Raises:
        Problem: the experiment's state does not allow it.
    """
    phase = phase_of(experiment)
    if experiment.ended is not None:
        detail = f"experiment {experiment.id} has ended ({phase}); it cannot be {done}"
        raise Problem(409, "ended", detail)
    if experiment.ending is not None and not until_end:
        ends = "ends at its limit" if experiment.ending == "limit" else "is being canceled"
        detail = f"experiment {experiment.id} {ends}; it cannot be {done}"
        raise Problem(409, "ending", detail)


def _route(control: Control, summary: str) -> Route:
    return Route(
        "POST",
        f"/experiments/{{experiment_id}}/{control}",
        _handler(control, f"{control}_experiment"),
        summary,
        api.Requested,
        status=202,
        idempotent=True,
        problems=(404, 409, 422),
        needs="experiment.edit",
    )


ROUTES: Final = (
    _route("pause", "Give the slots back and wait"),
    _route("resume", "Go on"),
    _route("cancel", "End, checkpointing first"),
    _route("kill", "End at once"),
    Route(
        "POST",
        "/trials/{trial_id}/kill",
        kill_trial,
        "End one trial at once; its search goes on without it",
        api.TrialAsked,
        status=202,
        idempotent=True,
        problems=(404, 409, 422),
        needs="experiment.edit",
    ),
)
