"""Requests to move a trial: it checkpoints, releases its slots and goes on on another agent.

The answer means that the request is on record; the scheduler decides what follows from it. An
impossible one is refused: the trial does not train now, the agent is unknown, gone, of another
pool, too small, or the one that the trial is on.
"""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta, Struct

from rung import api
from rung.events.allocation import MoveRequested
from rung.events.trial import allocation_id_of
from rung.gateway.context import Context, check_caught_up, context_of, reply, trial_of
from rung.gateway.problem import Problem, not_found
from rung.gateway.projections.experiment import Experiment, Trial, pool_of, trial_phase
from rung.gateway.projections.pools import (
    Pool,
    PoolProjection,
    Running,
    Waiting,
    read_pool,
    read_waiting,
    request_of,
    request_text,
)
from rung.gateway.requests.query import read_query
from rung.gateway.requests.writes import is_repeated, key_of, once, stamp, write
from rung.gateway.route import Route


class MoveQuery(Struct, forbid_unknown_fields=True):
    """Where to."""

    to: Annotated[str, Meta(min_length=1, max_length=200, description="id of an agent")] | None = (
        None
    )


async def move_trial(request: web.Request) -> web.StreamResponse:
    """Move a trial."""
    query = read_query(request, MoveQuery)
    context, key = context_of(request), key_of(request)
    async with once(context, key):
        experiment, trial = await trial_of(request)
        trial_id = f"{experiment.id}.{trial.index}"
        name = pool_of(experiment)
        fact = MoveRequested(
            pool=name, experiment_id=experiment.id, trial_id=trial_id, to=query.to
        )
        accepted = api.MoveAsked(trial_id=trial_id, to=query.to)
        before = await context.models.read(PoolProjection, request_of, name, key)
        if await is_repeated(context, request_text(fact), before, PoolProjection, name):
            return reply(accepted, status=202)
        check_caught_up(context.models)
        pool = await context.models.read(PoolProjection, read_pool, name, waiting=False)
        run = allocation_id_of(trial_id, trial.run)
        waiting = await context.models.read(PoolProjection, read_waiting, name, run)
        held = _slots_of(experiment, trial, pool.running.get(run), waiting)
        if query.to is not None:
            _check_agent(query.to, pool, held, context)
        await write(context, [stamp(context, key, fact)])
    return reply(accepted, status=202)


class _Held(Struct):
    """The slots that a trial has, or waits for."""

    trial_id: str
    slots: int
    agents: list[str]


def _slots_of(
    experiment: Experiment, trial: Trial, running: Running | None, waiting: Waiting | None
) -> _Held:
    """Return the slots that the trial's current run holds or waits for.

    Raises:
        Problem: it has none.
    """
    trial_id = f"{experiment.id}.{trial.index}"
    if running is not None:
        slots = sum(len(share.slots) for share in running.shares)
        return _Held(trial_id, slots, [share.agent_id for share in running.shares])
    if waiting is not None and not waiting.withdrawn:
        return _Held(trial_id, waiting.slots, [])
    phase = trial_phase(experiment, trial)
    if trial.closed is not None:
        raise Problem(409, "ended", f"trial {trial_id} has ended ({phase}); it cannot be moved")
    detail = f"trial {trial_id} neither trains nor waits for slots now ({phase})"
    raise Problem(409, "not-running", f"{detail}; move it once `rung show` says that it runs")


def _check_agent(agent_id: str, pool: Pool, held: _Held, context: Context) -> None:
    """Refuse an agent that cannot take the trial.

    Raises:
        Problem: why it cannot.
    """
    agent = pool.agents.get(agent_id)
    if agent is None:
        for other in context.models.agents():
            if agent_id in other.agents:
                detail = f"agent {agent_id} is in pool {other.name}; the trial is in {pool.name}"
                raise Problem(409, "other-pool", detail)
        raise not_found("agent", agent_id, "`rung status` and GET /api/v1/agents list them")
    if agent.state == "draining":
        detail = f"agent {agent_id} is being drained: {agent.reason}; name one that stays"
        raise Problem(409, "agent-gone", detail)
    if agent.state == "suspended":
        detail = f"agent {agent_id} takes nothing new: {agent.reason}; name another one"
        raise Problem(409, "agent-suspended", detail)
    if agent.state != "joined":
        how = "has left" if agent.state == "left" else "is lost"
        raise Problem(409, "agent-gone", f"agent {agent_id} {how}; name one that is there")
    if len(agent.slots) < held.slots:
        detail = (
            f"agent {agent_id} has {len(agent.slots)} slot{'' if len(agent.slots) == 1 else 's'}"
        )
        raise Problem(409, "too-small", f"{detail}; trial {held.trial_id} needs {held.slots}")
    if held.agents == [agent_id]:
        raise Problem(409, "there-already", f"trial {held.trial_id} is on agent {agent_id}")


ROUTES: Final = (
    Route(
        "POST",
        "/trials/{trial_id}/move",
        move_trial,
        "Have a trial go on on another agent",
        api.MoveAsked,
        status=202,
        query=MoveQuery,
        idempotent=True,
        problems=(404, 409, 422),
        needs="experiment.edit",
    ),
)
