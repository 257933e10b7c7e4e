"""Serializers of resource pools: records of the projection → of the API."""

from rung import api
from rung.gateway.feasibility import shortage
from rung.gateway.projections.pools import Agent, Pool


def agents(pool: Pool) -> list[api.Agent]:
    """Return a pool's agents by id, with the allocations of their slots."""
    held: dict[tuple[str, int, int], str] = {
        (share.agent_id, share.incarnation, slot): name
        for name, running in pool.running.items()
        for share in running.shares
        for slot in share.slots
    }
    return [_agent(pool, pool.agents[name], held) for name in sorted(pool.agents)]


def _agent(pool: Pool, agent: Agent, held: dict[tuple[str, int, int], str]) -> api.Agent:
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
                allocation_id=held.get((agent.id, agent.incarnation, slot.id)),
            )
            for slot in agent.slots
        ],
        reason=agent.reason,
        isolation=agent.isolation,
    )


def waiting(pools: list[Pool], *, behind: bool) -> list[api.QueueItem]:
    """Return the queue, by pool, priority and age.

    Args:
        pools: all that there are.
        behind: whether their agents may have changed: then no shortage is reported.
    """
    wanted = dict.fromkeys((pool.name, it.slots) for pool in pools for it in pool.waiting.values())
    lacks = {each: None if behind else shortage(pools, *each) for each in wanted}
    found = [
        api.QueueItem(
            allocation_id=name,
            pool=pool.name,
            experiment_id=item.experiment_id,
            trial_id=item.trial_id,
            run=item.run,
            slots=item.slots,
            priority=item.priority,
            requested_at=item.requested_at,
            withdrawn=item.withdrawn,
            reason=lacks[pool.name, item.slots],
        )
        for pool in pools
        for name, item in pool.waiting.items()
    ]
    return sorted(found, key=lambda it: (it.pool, it.priority, it.requested_at, it.allocation_id))


def pool_status(pool: Pool) -> api.PoolStatus:
    """Return a pool in numbers; agents that are gone, or will be soon, do not count."""
    known = agents(pool)
    here = [agent for agent in known if agent.state == "joined"]
    slots = [slot for agent in here for slot in agent.slots]
    return api.PoolStatus(
        name=pool.name,
        policy=pool.policy,
        options=pool.options,
        agents=len(here),
        slots=len(slots),
        slots_used=sum(1 for slot in slots if slot.allocation_id is not None),
        waiting=len(pool.waiting),
        draining=sum(agent.state == "draining" for agent in known),
        suspended=sum(agent.state == "suspended" for agent in known),
    )


def problems(pool: Pool) -> list[str]:
    """Return which agents of a pool take nothing, though they live, and why."""
    suspended = [
        f"agent {agent.id} takes nothing new: {agent.reason}"
        for agent in agents(pool)
        if agent.state == "suspended"
    ]
    refused = sorted(
        f"an agent is refused since {each.since}: {each.reason}" for each in pool.refused.values()
    )
    return refused + suspended
