"""What an agent takes of the scheduler's decisions."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from msgspec import structs

from rung.agent.membership.placements import Placement, Placements
from rung.events import Event, LedgerRefused, decision, encode, fact, topic
from rung.events.allocation import AllocationSignaled, JoinRefused
from rung.events.trial import RunWithdrawn
from rung.ledger import Draft, MemoryLedger, Record

POOL = "default"


def _signal(position: int, index: int = 0, pool: str = POOL) -> Event:
    """Return the decision to stop an allocation, caused by the fact at a position."""
    name = f"k3v9x2ab.{position}.{index}"
    asked = RunWithdrawn(
        experiment_id="k3v9x2ab",
        trial_id=f"k3v9x2ab.{position}",
        run=index,
        pool=pool,
        how="kill",
        reason="",
    )
    cause = fact(asked, source="/rung/scheduler", origin="o", sequence=position, time="t")
    data = AllocationSignaled(pool=pool, allocation_id=name, agents=["a1"], how="kill")
    return decision(data, source="/rung/scheduler", cause=cause, position=position, index=index)


async def _append(ledger: MemoryLedger, events: Sequence[Event]) -> None:
    await ledger.append([Draft.of(it) for it in events])


async def _obeyed(
    before: Sequence[Event], after: Sequence[Event], ledger: MemoryLedger | None = None
) -> list[str]:
    """Return what is obeyed by an agent that joins between the two."""
    ledger = ledger or MemoryLedger(partitions=1)
    await _append(ledger, before)
    last = _signal(1_000_000)
    obeyed: list[str] = []
    end = asyncio.Event()

    def obey(placement: Placement) -> None:
        if placement == last.data:
            end.set()
        elif not isinstance(placement, JoinRefused):
            obeyed.append(placement.allocation_id)

    placements = Placements(ledger, POOL, obey)
    await placements.seek_to_end()
    async with asyncio.TaskGroup() as group:
        following = group.create_task(placements.follow())
        await _append(ledger, [*after, last])
        await end.wait()
        following.cancel()
    return obeyed


class Shut(MemoryLedger):
    """A ledger that lets no follower in at first."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self._shut = True

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Follow, or refuse the login."""
        if self._shut:
            self._shut = False
            raise LedgerRefused("the cluster does not allow it")
        async for records in super().follow(topic, partition, position):
            yield records


async def test_rights_that_are_taken_away_are_waited_for() -> None:
    """Refused while trials run, following goes on where it was once it is allowed again."""
    assert await _obeyed([_signal(1)], [_signal(2)], Shut()) == await _obeyed([], [_signal(2)])


async def test_a_decision_that_lies_there_twice_is_obeyed_once() -> None:
    """What a scheduler that woke late wrote once more is passed over, wherever it lies."""
    once = [_signal(1), _signal(2), _signal(2, 1), _signal(5)]
    late = [*once[:3], *once[:2], *once[1:], *once]

    assert await _obeyed([], late) == await _obeyed([], once)
    assert len(await _obeyed([], once)) == 4


async def test_other_pools_have_causes_of_their_own() -> None:
    """A later decision about another pool in the same partition makes none of ours late."""
    assert len(await _obeyed([], [_signal(9, pool="gpu"), _signal(3), _signal(4)])) == 2


async def test_what_was_there_before_the_agent_joined_is_not_obeyed() -> None:
    """Grants follow the join that offers the slots, so nothing before it is for this life."""
    assert await _obeyed([_signal(1)], [_signal(2)]) == ["k3v9x2ab.2.0"]


async def test_a_record_that_names_no_cause_is_no_decision() -> None:
    """It is passed over, and what follows is obeyed."""
    ledger = MemoryLedger(partitions=1)
    nameless = structs.replace(_signal(3), cause=None, causeposition=None, causeindex=None)
    foreign = Draft(topic.PLACEMENTS, POOL, encode(nameless))
    obeyed: list[Placement] = []
    end = asyncio.Event()

    def obey(placement: Placement) -> None:
        obeyed.append(placement)
        if placement == _signal(4).data:
            end.set()

    await ledger.append([Draft.of(_signal(2)), foreign, Draft.of(_signal(4))])
    async with asyncio.TaskGroup() as group:
        following = group.create_task(Placements(ledger, POOL, obey).follow())
        await end.wait()
        following.cancel()
    assert obeyed == [_signal(2).data, _signal(4).data]
