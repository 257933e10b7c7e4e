"""What an agent hears of its pool."""

import asyncio
from collections.abc import Sequence

from rung.agent.membership.pool_facts import PoolFacts
from rung.events import Payload, fact
from rung.events.allocation import AgentJoined, AgentLost, AllocationAddressed
from rung.ledger import Draft, MemoryLedger

POOL = "default"


def lost(agent_id: str, pool: str = POOL) -> AgentLost:
    """Return the fact that an agent is taken for lost."""
    return AgentLost(pool=pool, agent_id=agent_id, incarnation=1, silent_ms=30_000)


def addressed(agent_id: str) -> AllocationAddressed:
    """Return the fact that a part of a gang can be reached."""
    return AllocationAddressed(
        pool=POOL,
        allocation_id="k3v9x2ab.0.1",
        agent_id=agent_id,
        incarnation=1,
        host="10.0.0.7",
        ports=[5000, 5001],
        public_key="",
    )


def joined(agent_id: str) -> AgentJoined:
    """Return a fact that is the scheduler's affair."""
    return AgentJoined(pool=POOL, agent_id=agent_id, incarnation=1, hostname="n", slots=[])


def record(payload: Payload) -> Draft:
    """Return what is appended of a fact."""
    event = fact(payload, source="/test", origin="test", sequence=1, time="2026-01-01")
    return Draft.of(event)


async def heard(before: Sequence[Draft], after: Sequence[Draft]) -> list[Payload]:
    """Return what is handed on when an agent begins to listen between the two."""
    ledger = MemoryLedger(partitions=1)
    found: list[Payload] = []
    end = asyncio.Event()

    async def hear(payload: Payload) -> None:
        if payload == lost("the end"):
            end.set()
        else:
            found.append(payload)

    facts = PoolFacts(ledger, POOL, lost=hear, addressed=hear, members=lambda _: None)
    await ledger.append(before)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(facts.follow())
        await facts.following.wait()
        await ledger.append([*after, record(lost("the end"))])
        await end.wait()
        following.cancel()
    return found


async def test_losses_and_addresses_are_handed_on_in_order() -> None:
    """They come as they lie there; what else happens in the pool does not come."""
    said: list[Payload] = [addressed("a2"), joined("a3"), lost("a1"), addressed("a3")]
    assert await heard([], [record(each) for each in said]) == [said[0], said[2], said[3]]


async def test_what_was_said_before_is_past() -> None:
    """An agent that begins is not told of a loss in an earlier session."""
    assert await heard([record(lost("a1"))], [record(addressed("a2"))]) == [addressed("a2")]


async def test_other_pools_are_none_of_its_affair() -> None:
    """They may share the partition."""
    assert await heard([], [record(lost("a1", "gpu")), record(lost("a2"))]) == [lost("a2")]


async def test_what_cannot_be_read_is_passed_over() -> None:
    """One bad record does not take the agents of a pool down."""
    good = record(lost("a1"))
    bad = Draft(good.topic, good.key, good.value.replace(b'"silent_ms":', b'"hush_ms":'))
    assert bad != good
    assert await heard([], [bad, record(lost("a2"))]) == [lost("a2")]
