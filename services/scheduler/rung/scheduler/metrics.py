"""Prometheus metrics of pools: slots, queue lengths, and waiting times."""

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rung.events import Event, UndecodableEvent
from rung.events.allocation import AllocationDropped, AllocationGranted
from rung.events.codec import decode_handled
from rung.events.trial import RunRequested
from rung.ledger import Record
from rung.runtime.metrics import catalog
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.fold import PartitionFold
from rung.scheduler.state import State

_REQUESTED: Final = (RunRequested.TYPE,)
_MARK: Final = RunRequested.TYPE.encode()

_SINCE_MIN: Final = 1_000
"""So many requests are remembered without a look at whether they still wait."""

_Told = dict[tuple[str, ...], float]


class PoolGauge(Observer[State]):
    """Observes the scheduler's folds: measures them, and gives access to their states."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._folds: dict[int, PartitionFold[State]] = {}
        self._since = OrderedDict[str, float]()
        """Allocation id → when its request was seen; after a restart, seen again."""

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Expose the pools to Prometheus while the context lasts."""
        with (
            catalog.SLOTS.read_from(self.slots),
            catalog.QUEUE_LENGTH.read_from(self.queues),
        ):
            yield

    def begin(self, partition: int, fold: PartitionFold[State]) -> None:
        """Add a partition's fold."""
        self._folds[partition] = fold

    def see(self, records: Sequence[Record], decisions: Sequence[Event]) -> None:
        """Measure the time from request to grant."""
        now_s = self._clock()
        for record in records:
            if _MARK in record.value:  # cheaper than decoding every fact
                with contextlib.suppress(UndecodableEvent):  # the loop has rejected it
                    asked = decode_handled(record.value, _REQUESTED)
                    if asked is not None and isinstance(asked.data, RunRequested):
                        self._since.setdefault(asked.data.allocation_id, now_s)
                        self._forget()
        for event in decisions:
            data = event.data
            if isinstance(data, AllocationGranted | AllocationDropped):
                since_s = self._since.pop(data.allocation_id, None)
                if since_s is not None and isinstance(data, AllocationGranted):
                    catalog.QUEUE_WAIT_SECONDS.labels(data.pool).observe(now_s - since_s)

    def end(self, partition: int) -> None:
        """Remove a partition's fold."""
        self._folds.pop(partition, None)

    def _forget(self) -> None:
        """Forget the two oldest requests if they wait no more.

        Decisions made before the start are not seen. Two for each that comes: those that wait no
        more become fewer, and no event costs a look at all.
        """
        for _ in range(min(2, len(self._since) - _SINCE_MIN)):
            oldest = next(iter(self._since))
            if any(
                oldest in queue
                for state in self.states()
                for queue in (state.queue, state.zero_slot_queue)
            ):
                self._since.move_to_end(oldest)
            else:
                del self._since[oldest]

    def slots(self) -> _Told:
        """Return the number of free and used slots of each pool."""
        found: _Told = {}
        for state in self.states():
            offers = state.room.agents.values()
            free = sum(len(offer.idle) for offer in offers)
            found[state.pool, "free"] = float(free)
            found[state.pool, "used"] = float(sum(offer.size for offer in offers) - free)
        return found

    def queues(self) -> _Told:
        """Return how many allocations wait in each pool."""
        return {
            (state.pool,): float(len(state.queue) + len(state.zero_slot_queue))
            for state in self.states()
        }

    def states(self) -> Iterator[State]:
        """Yield the states of this replica's pools."""
        for fold in self._folds.values():
            yield from fold.states()
