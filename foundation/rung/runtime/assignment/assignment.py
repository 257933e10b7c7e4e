"""Which partitions this replica of a service works on.

One machine has one replica, and all partitions are its own (`Whole`). Among several replicas
somebody shares them out, and gives this one its portion and takes it back (`Portion`): for Kafka
that is `rung.runtime.assignment.faust_application`.

Nothing of what a replica may do rests on a share being right. Two replicas that both believe in
a partition do the same work twice, which nobody notices but they themselves; see
docs/decisions/0006-who-owns-a-partition.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import structlog

from rung.ledger import Ledger

Work = Callable[[int], Awaitable[None]]

ENDS_WITHIN_S: Final = 5.0
"""So long may the work on a partition take to end, before the partition is given to others."""

_log = structlog.get_logger()


class Share(Protocol):
    """What tells a replica its partitions."""

    async def hold(self, topic: str, work: Work) -> None:
        """Run `work(partition)` for each partition of a topic while it is this replica's.

        Runs for ever. The work on a partition that is taken away is cancelled and awaited; an
        error that it raises ends this too.
        """
        ...


class Whole:
    """All partitions, for ever: there is no other replica."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def hold(self, topic: str, work: Work) -> None:
        """Run `work(partition)` for each partition of a topic until cancelled."""
        await _run(_Holder(topic, work), range(self._ledger.partitions(topic)))


class Portion:
    """Some partitions, which change; whoever shares them out says so by `change`."""

    def __init__(self) -> None:
        self._held: dict[str, frozenset[int]] = {}
        self._holders: list[_Holder] = []

    @property
    def held(self) -> Mapping[str, frozenset[int]]:
        """The partitions that are this replica's now, by topic."""
        return self._held

    async def hold(self, topic: str, work: Work) -> None:
        """Run `work(partition)` for each partition of a topic while it is this replica's."""
        holder = _Holder(topic, work)
        self._holders.append(holder)
        try:
            await _run(holder, self._held.get(topic, frozenset()))
        finally:
            self._holders.remove(holder)

    async def change(
        self, held: Mapping[str, Collection[int]], *, within_s: float = ENDS_WITHIN_S
    ) -> None:
        """Work on these partitions from now on, and on no others.

        Returns when the work on the others has ended, or did not in time: then it ends later,
        and before that partition is worked on again here.
        """
        self._held = {topic: frozenset(partitions) for topic, partitions in held.items()}
        ending = [
            task
            for holder in self._holders
            for task in holder.stop_all_but(self._held.get(holder.topic, frozenset()))
        ]
        if ending:
            _, late = await asyncio.wait(ending, timeout=within_s)
            if late:
                _log.warning("slow to let go of partitions", loops=len(late), waited_s=within_s)
        for holder in self._holders:
            holder.start(sorted(self._held.get(holder.topic, frozenset())))


async def _run(holder: "_Holder", partitions: Collection[int]) -> None:
    holder.start(partitions)
    try:
        await holder.failed
    finally:
        await holder.end()


class _Holder:
    """One kind of work on one topic, with a task for each partition."""

    def __init__(self, topic: str, work: Work) -> None:
        self.topic: Final = topic
        self.failed: Final = asyncio.get_running_loop().create_future()
        self._work = work
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ending: dict[int, list[asyncio.Task[None]]] = {}
        self._over = False

    def start(self, partitions: Collection[int]) -> None:
        """Work on these partitions too, unless all work was told to end."""
        for partition in () if self._over else partitions:
            if partition not in self._tasks:
                task = asyncio.create_task(self._begin(partition, self._ending.get(partition, [])))
                task.add_done_callback(self._look)
                self._tasks[partition] = task

    def stop_all_but(self, kept: Collection[int]) -> list[asyncio.Task[None]]:
        """Have the work on all other partitions end; return what is ending."""
        for partition in [partition for partition in self._tasks if partition not in kept]:
            task = self._tasks.pop(partition)
            task.cancel()
            self._ending.setdefault(partition, []).append(task)
        self._ending = {
            partition: slow
            for partition, tasks in self._ending.items()
            if (slow := [task for task in tasks if not task.done()])
        }
        return [task for tasks in self._ending.values() for task in tasks]

    async def end(self) -> None:
        """Have all work end, and wait until it has; none begins any more."""
        self._over = True
        await asyncio.gather(*self.stop_all_but(()), return_exceptions=True)

    async def _begin(self, partition: int, earlier: Collection[asyncio.Task[None]]) -> None:
        if earlier:
            await asyncio.wait(earlier)
        await self._work(partition)

    def _look(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)
