"""What a person may ask of an experiment: pause, resume, cancel, kill.

The answer says that the wish is on record; the searcher decides what follows from it. Asking again
for what is already so is no error; asking for what can no longer be is one.
"""

from collections.abc import Callable
from typing import Final, Literal

from aiohttp import web

from rung import api
from rung.events import Event, Payload
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
from rung.gateway.requests.append import recognized, write
from rung.gateway.requests.idempotency import REUSED, key_of, once
from rung.gateway.requests.query import NoQuery, read_query
from rung.gateway.route import Handler, Route

Wish = Literal["pause", "resume", "cancel", "kill"]

_FACTS: Final[dict[Wish, Callable[[str], Payload]]] = {
    "pause": lambda name: PauseRequested(experiment_id=name),
    "resume": lambda name: ResumeRequested(experiment_id=name),
    "cancel": lambda name: CancelRequested(experiment_id=name),
    "kill": lambda name: KillRequested(experiment_id=name),
}


def _asking(wish: Wish, name: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        read_query(request, NoQuery)
        context, key = context_of(request), key_of(request)
        async with once(context, key):
            experiment = await experiment_of(request)
            accepted = api.Requested(experiment_id=experiment.id, requested=wish)
            if key is not None and key in experiment.requests:
                if experiment.requests[key] != wish:
                    raise Problem(422, REUSED, _reused(experiment, key))
                await recognized(context, ExperimentProjection, experiment.id)
                return reply(accepted, status=202)
            _check(experiment, wish)
            facts: list[Event] = [
                context.writer.stamp(
                    _FACTS[wish](experiment.id),
                    origin=key,
                    sequence=None if key is None else 1,
                )
            ]
            await write(context, facts)
        return reply(accepted, status=202)

    handler.__name__ = name
    return handler


def _reused(experiment: Experiment, key: str) -> str:
    what = experiment.requests[key]
    return (
        f"this Idempotency-Key was used to {what} experiment {experiment.id}; "
        "draw a new key for another request"
    )


def _check(experiment: Experiment, wish: Wish) -> None:
    """Refuse what cannot be.

    Raises:
        Problem: the experiment's state does not allow it.
    """
    phase = phase_of(experiment)
    if experiment.ended is not None:
        raise Problem(
            409,
            "ended",
            f"experiment {experiment.id} has ended ({phase}); it cannot {wish} any more",
        )
    if experiment.ending is not None and wish in {"pause", "resume"}:
        raise Problem(
            409, "ending", f"experiment {experiment.id} is being canceled; it cannot {wish}"
        )


def _route(wish: Wish, summary: str) -> Route:
    return Route(
        "POST",
        f"/experiments/{{experiment_id}}/{wish}",
        _asking(wish, f"{wish}_experiment"),
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
