"""Assignment: which partitions this replica of a service works on.

On one machine there is one replica, with all partitions (`AllPartitions`). Among several replicas
they are assigned and revoked (`ChangingAssignment`): for Kafka by
`rung.runtime.assignment.faust_application`.

Correctness does not depend on assignments. Two replicas with the same partition do the same work
twice, without effect on others; see docs/decisions/0006-who-owns-a-partition.md.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import structlog

from rung.ledger import Ledger

Work = Callable[[int], Awaitable[None]]

ENDS_WITHIN_S: Final = 5.0
"""How long the work on a revoked partition may take to end before others are assigned to it."""

_log = structlog.get_logger()


class Assignment(Protocol):
    """The partitions of this replica."""

    async def run(self, topic: str, work: Work) -> None:
        """Run `work(partition)` for each partition of a topic while it is assigned.

        Runs for ever. The work on a revoked partition is cancelled and awaited; an error that the
        work raises is raised here.
        """
        ...


class AllPartitions:
    """All partitions, for ever, where there is no other replica."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def run(self, topic: str, work: Work) -> None:
        """Run `work(partition)` for each partition of a topic until cancelled."""
        await _Worker(topic, work).run(range(self._ledger.partitions(topic)))


class ChangingAssignment:
    """Some partitions, until `change` assigns others."""

    def __init__(self) -> None:
        self._partitions: dict[str, frozenset[int]] = {}
        self._workers: list[_Worker] = []

    @property
    def partitions(self) -> Mapping[str, frozenset[int]]:
        """The partitions that are assigned now, by topic."""
        return self._partitions

    async def run(self, topic: str, work: Work) -> None:
        """Run `work(partition)` for each partition of a topic while it is assigned."""
        worker = _Worker(topic, work)
        self._workers.append(worker)
        try:
            await worker.run(self._partitions.get(topic, frozenset()))
        finally:
            self._workers.remove(worker)

    async def change(
        self, assigned: Mapping[str, Collection[int]], *, within_s: float = ENDS_WITHIN_S
    ) -> None:
        """Work on these partitions from now on, and on no others.

        Returns when the work on the others has ended, or at the latest after `within_s`: then it
        ends later, and before work on that partition begins here again.
        """
        self._partitions = {topic: frozenset(numbers) for topic, numbers in assigned.items()}
        ending = [
            task
            for worker in self._workers
            for task in worker.stop_all_but(self._partitions.get(worker.topic, frozenset()))
        ]
        if ending:
            _, late = await asyncio.wait(ending, timeout=within_s)
            if late:
                _log.warning("slow to let go of partitions", loops=len(late), waited_s=within_s)
        for worker in self._workers:
            worker.start(sorted(self._partitions.get(worker.topic, frozenset())))


class _Worker:
    """One kind of work on one topic, with a task for each partition."""

    def __init__(self, topic: str, work: Work) -> None:
        self.topic: Final = topic
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._work = work
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ending: dict[int, list[asyncio.Task[None]]] = {}
        self._over = False

    async def run(self, partitions: Collection[int]) -> None:
        """Work on these partitions, and on those that `start` adds, until cancelled or failed."""
        self.start(partitions)
        try:
            await self._failed
        finally:
            self._over = True
            await asyncio.gather(*self.stop_all_but(()), return_exceptions=True)

    def start(self, partitions: Collection[int]) -> None:
        """Work on these partitions too, unless all work has ended."""
        for partition in () if self._over else partitions:
            if partition not in self._tasks:
                task = asyncio.create_task(self._begin(partition, self._ending.get(partition, [])))
                task.add_done_callback(self._look)
                self._tasks[partition] = task

    def stop_all_but(self, kept: Collection[int]) -> list[asyncio.Task[None]]:
        """Cancel the work on all other partitions; return the tasks that are ending."""
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

    async def _begin(self, partition: int, earlier: Collection[asyncio.Task[None]]) -> None:
        if earlier:
            await asyncio.wait(earlier)
        await self._work(partition)

    def _look(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
