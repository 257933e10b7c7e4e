"""Requests to pause, resume, cancel or kill an experiment.

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
from rung.gateway.context import context_of, experiment_of, reply
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import Experiment, phase_of
from rung.gateway.projections.experiments import ExperimentProjection
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.requests.writes import is_repeated, key_of, once, stamp, write
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


def _handler(control: Control, name: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        read_query(request, NoQuery)
        context, key = context_of(request), key_of(request)
        async with once(context, key):
            experiment = await experiment_of(request)
            about = f" experiment {experiment.id}"
            action = experiment.requests.get(key or "")
            before = None if action is None else action + about
            subject = experiment.id
            if not await is_repeated(
                context, control + about, before, ExperimentProjection, subject
            ):
                _check(experiment, control)
                fact = _FACTS[control](experiment_id=experiment.id)
                await write(context, [stamp(context, key, fact)])
        return reply(api.Requested(experiment_id=experiment.id, requested=control), status=202)

    handler.__name__ = name
    return handler


def _check(experiment: Experiment, control: Control) -> None:
    """Refuse a request that is no longer possible.

    Raises:
        Problem: the experiment's state does not allow it.
    """
    phase = phase_of(experiment)
    if experiment.ended is not None:
        raise Problem(
            409,
            "ended",
            f"experiment {experiment.id} has ended ({phase}); it cannot {control} any more",
        )
    if experiment.ending is not None and control in {"pause", "resume"}:
        raise Problem(
            409, "ending", f"experiment {experiment.id} is being canceled; it cannot {control}"
        )


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
    )


ROUTES: Final = (
    _route("pause", "Give the slots back and wait"),
    _route("resume", "Go on"),
    _route("cancel", "End, checkpointing first"),
    _route("kill", "End at once"),
)
