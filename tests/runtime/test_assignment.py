"""Partitions given and taken while there is work on them."""

import asyncio
from collections.abc import Mapping

import pytest

from rung.events import LedgerDamaged
from rung.ledger import MemoryLedger
from rung.runtime import AllPartitions, ChangingAssignment


class Work:
    """Work on partitions that notes what it does."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.slow = asyncio.Event()
        """Once set, work that was cancelled ends."""
        self.slow.set()

    async def __call__(self, partition: int) -> None:
        """Work until cancelled."""
        self.notes.append(f"+{partition}")
        try:
            await asyncio.Event().wait()
        finally:
            await self.slow.wait()
            self.notes.append(f"-{partition}")


async def settle() -> None:
    """Let tasks run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_whole_is_every_partition() -> None:
    """One replica works on all partitions, and ends the work when it is cancelled."""
    work = Work()
    task = asyncio.create_task(AllPartitions(MemoryLedger(partitions=3)).run("searches", work))
    await settle()
    assert work.notes == ["+0", "+1", "+2"]
    await _end(task)
    assert sorted(work.notes[3:]) == ["-0", "-1", "-2"]


async def test_work_begins_and_ends_with_the_portion() -> None:
    """What is taken is ended before the change is done; what stays is not disturbed."""
    assignment, work = ChangingAssignment(), Work()
    task = asyncio.create_task(assignment.run("searches", work))
    await settle()
    assert work.notes == []
    changes: list[Mapping[str, set[int]]] = [
        {"searches": {0, 1}, "pools": {5}},
        {"searches": {1, 2}},
        {},
    ]
    seen = []
    for held in changes:
        await assignment.change(held)
        await settle()
        seen.append(list(work.notes))
        work.notes.clear()
    assert seen == [["+0", "+1"], ["-0", "+2"], ["-1", "-2"]]
    await _end(task)


async def test_what_is_held_already_is_worked_on_at_once() -> None:
    """Work that comes later than its partitions begins with them."""
    assignment, work = ChangingAssignment(), Work()
    await assignment.change({"searches": {3}})
    task = asyncio.create_task(assignment.run("searches", work))
    await settle()
    assert work.notes == ["+3"]
    assert assignment.partitions == {"searches": frozenset({3})}
    await _end(task)


async def test_work_that_does_not_let_go_is_not_waited_for_long() -> None:
    """The change goes on; the partition is worked on here again only after it ended."""
    assignment, work = ChangingAssignment(), Work()
    task = asyncio.create_task(assignment.run("searches", work))
    await assignment.change({"searches": {0}})
    await settle()
    work.slow.clear()
    await assignment.change({}, within_s=0.01)
    await assignment.change({"searches": {0}}, within_s=0.01)
    await settle()
    assert work.notes == ["+0"]
    work.slow.set()
    await settle()
    assert work.notes == ["+0", "-0", "+0"]
    await _end(task)


async def test_an_error_of_the_work_ends_the_holding() -> None:
    """An error that does not pass is the holder's, and ends the work on the others."""
    assignment, ended = ChangingAssignment(), []

    async def work(partition: int) -> None:
        if partition == 1:
            raise LedgerDamaged("beyond repair")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(partition)

    await assignment.change({"searches": {0, 1}})
    with pytest.raises(LedgerDamaged, match="beyond repair"):
        await assignment.run("searches", work)
    assert ended == [0]


async def test_slow_work_is_waited_for_through_several_changes() -> None:
    """A partition given and taken again while its first work still ends is worked on once."""
    assignment, work = ChangingAssignment(), Work()
    task = asyncio.create_task(assignment.run("searches", work))
    await assignment.change({"searches": {0}})
    await settle()
    work.slow.clear()
    for held in ({}, {"searches": {0}}, {}, {"searches": {0}}):
        await assignment.change(held, within_s=0.01)
        await settle()
    assert work.notes == ["+0"]
    work.slow.set()
    await settle()
    assert work.notes == ["+0", "-0", "+0"]
    await _end(task)


async def test_nothing_begins_while_the_holder_ends() -> None:
    """A change that comes while the last work ends starts no more of it."""
    assignment, work = ChangingAssignment(), Work()
    task = asyncio.create_task(assignment.run("searches", work))
    await assignment.change({"searches": {0}})
    await settle()
    work.slow.clear()
    task.cancel()
    await settle()
    await assignment.change({"searches": {0, 1}}, within_s=0.01)
    work.slow.set()
    await asyncio.gather(task, return_exceptions=True)
    await settle()
    assert work.notes == ["+0", "-0"]
