"""Serializers of resource pools: records of the projection → of the API."""

from collections import Counter
from collections.abc import Callable, Sequence

from rung import api
from rung.gateway.feasibility import shortage
from rung.gateway.projections.pools import Agent, Place, Pool, Waiting


def agents(pool: Pool, shows: Callable[[str], bool] = lambda _: True) -> list[api.Agent]:
    """Return a pool's agents by id, with the allocations of their slots.

    Args:
        pool: theirs.
        shows: says which allocations, by their ids, are shown.
    """
    held: dict[tuple[str, int, int], str] = {
        (share.agent_id, share.incarnation, slot): name
        for name, running in pool.running.items()
        for share in running.shares
        for slot in share.slots
    }
    return [_agent(pool, pool.agents[name], held, shows) for name in sorted(pool.agents)]


def _agent(
    pool: Pool,
    agent: Agent,
    held: dict[tuple[str, int, int], str],
    shows: Callable[[str], bool],
) -> api.Agent:
    holders = {slot.id: held.get((agent.id, agent.incarnation, slot.id)) for slot in agent.slots}
    return api.Agent(
        id=agent.id,
        pool=pool.name,
        hostname=agent.hostname,
        incarnation=agent.incarnation,
        state=agent.state,
        since=agent.since,
        slots=[
            api.SlotUse(
                id=slot.id,
                kind=slot.kind,
                name=slot.name,
                allocation_id=holder if holder is not None and shows(holder) else None,
                busy=holder is not None,
            )
            for slot in agent.slots
            for holder in (holders[slot.id],)
        ],
        reason=agent.reason,
        isolation=agent.isolation,
    )


def waiting(
    queued: Sequence[tuple[Place, Waiting]], pools: list[Pool], *, behind: bool
) -> list[api.QueueItem]:
    """Return what waits, in its order.

    Args:
        queued: what waits, each with its place.
        pools: all that there are.
        behind: whether their agents may have changed: then no shortage is reported.
    """
    wanted = dict.fromkeys((place[0], it.slots) for place, it in queued)
    lacks = {each: None if behind else shortage(pools, *each) for each in wanted}
    return [
        api.QueueItem(
            allocation_id=name,
            pool=pool,
            experiment_id=item.experiment_id,
            trial_id=item.trial_id,
            run=item.run,
            slots=item.slots,
            priority=item.priority,
            requested_at=item.requested_at,
            withdrawn=item.withdrawn,
            reason=lacks[pool, item.slots],
        )
        for (pool, _, _, name), item in queued
    ]


def pool_status(pool: Pool, waiting: int, *, in_full: bool = True) -> api.PoolStatus:
    """Return a pool in numbers; agents that are gone, or will be soon, do not count.

    Args:
        pool: to be shown.
        waiting: how many allocations are shown as waiting.
        in_full: whether the options of its policy are shown, which may name workspaces.
    """
    states = Counter(agent.state for agent in pool.agents.values())
    here = [agent for agent in pool.agents.values() if agent.state == "joined"]
    held = {
        (share.agent_id, share.incarnation, slot)
        for running in pool.running.values()
        for share in running.shares
        for slot in share.slots
    }
    return api.PoolStatus(
        name=pool.name,
        policy=pool.policy,
        options=pool.options if in_full else {},
        agents=len(here),
        slots=sum(len(agent.slots) for agent in here),
        slots_used=sum(
            (agent.id, agent.incarnation, slot.id) in held
            for agent in here
            for slot in agent.slots
        ),
        waiting=waiting,
        draining=states["draining"],
        suspended=states["suspended"],
    )


def problems(pool: Pool) -> list[str]:
    """Return which agents of a pool take nothing, though they live, and why."""
    suspended = [
        f"agent {name} takes nothing new: {agent.reason}"
        for name, agent in sorted(pool.agents.items())
        if agent.state == "suspended"
    ]
    refused = sorted(
        f"an agent is refused since {each.since}: {each.reason}" for each in pool.refused.values()
    )
    return refused + suspended
