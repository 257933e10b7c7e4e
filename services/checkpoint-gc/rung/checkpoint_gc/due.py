"""Timer of deletions: writes that it is so late, once a deletion cannot be taken back any more.

The processor has no clock. Each replica looks at the experiments that it decides about, in the
states of its processor, and writes `experiment.deletion_due` for those whose time is over. A
replica that was killed, or stood still, writes it at its next look; two replicas that both own a
partition for a moment both write it, and the processor takes the first.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from rung.checkpoint_gc.state import State
from rung.events.experiment import DeletionDue
from rung.runtime import FactWriter
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.fold import PartitionFold

Clock = Callable[[], int]
"""Returns the milliseconds since 1970."""

_log = structlog.get_logger()


def wall_clock() -> int:
    """Return the milliseconds since 1970, by the machine's clock."""
    return time.time_ns() // 1_000_000


class Scheduled(Observer[State]):
    """Access to the deletions that wait, in the states of this replica's partitions."""

    def __init__(self) -> None:
        self._folds: dict[int, PartitionFold[State]] = {}

    def begin(self, partition: int, fold: PartitionFold[State]) -> None:
        """Add a partition's fold."""
        self._folds[partition] = fold

    def end(self, partition: int) -> None:
        """Remove a partition's fold."""
        self._folds.pop(partition, None)

    def until_ms(self) -> Iterator[tuple[str, int]]:
        """Yield the experiments that are to be deleted, and when."""
        for fold in self._folds.values():
            for state in fold.states():
                if state.scheduled is not None:
                    yield state.experiment_id, state.scheduled.until_ms


class DeletionTimer:
    """The timer of one replica."""

    def __init__(
        self, scheduled: Scheduled, writer: FactWriter, *, every_s: float, clock: Clock
    ) -> None:
        """Prepare it.

        Args:
            scheduled: the deletions that wait.
            writer: writes what is due.
            every_s: seconds between two looks.
            clock: what time it is.
        """
        self._scheduled: Final = scheduled
        self._writer: Final = writer
        self._every_s: Final = every_s
        self._clock: Final = clock
        self._written: set[tuple[str, int]] = set()
        """What was written and is not decided yet."""

    async def run(self) -> None:
        """Write what is due until cancelled.

        Raises:
            LedgerError: the ledger failed; run again to start afresh.
        """
        self._written.clear()
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Write what is due at this moment, each once.

        Raises:
            LedgerError: the ledger failed.
        """
        now_ms = self._clock()
        due = {each for each in self._scheduled.until_ms() if each[1] <= now_ms}
        self._written &= due
        for experiment_id, until_ms in sorted(due - self._written):
            _log.info("deletion is due", experiment=experiment_id, until_ms=until_ms)
            await self._writer.write(DeletionDue(experiment_id=experiment_id, at_ms=now_ms))
            self._written.add((experiment_id, until_ms))
