"""Missing rows: what the ledger has and the series lack is found, reported and written again.

After each start, every partition is read once more behind the sink, from its beginning: slowly, so
that it takes a tenth of a processor at most. The rows that follow from some records are compared
with those that the series have. Not compared are rows that retention drops, and those of trials
whose reports or lines were deleted afterwards.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Final

import structlog

from rung.backoff import Backoff
from rung.events import LedgerTrimmed, UndecodableEvent, topic
from rung.events.codec import decode_handled
from rung.events.metric import LogsDeleted, MetricsDeleted
from rung.ledger import Ledger
from rung.metrics.batch import Batch
from rung.metrics.settings import Settings
from rung.metrics.store import SeriesStore
from rung.runtime.metrics import catalog
from rung.runtime.sink.batch_sink import Look, Looks, PeriodicSink

EVERY_S: Final = 600.0
_RECORDS: Final = 200
"""Compared at once."""
_READ_MAX: Final = 2_000
_REST: Final = 9.0
"""A pause is so many times as long as the work before it."""
_DELETIONS: Final = frozenset({LogsDeleted.TYPE, MetricsDeleted.TYPE})
_DAY_MS: Final = 86_400_000
_MARGIN_MS: Final = 3_600_000
"""Before retention drops a row, it is no longer compared for so long: clocks differ."""

_log = structlog.get_logger()


def completing(
    store: SeriesStore, settings: Settings, *, every_s: float = EVERY_S
) -> PeriodicSink:
    """Return what writes rows again that the series lack.

    Args:
        store: the series.
        settings: with the days of retention.
        every_s: the period in seconds in which new records are compared.
    """

    @contextlib.contextmanager
    def opened(ledger: Ledger) -> Iterator[Looks]:
        @contextlib.contextmanager
        def looks(name: str, partition: int) -> Iterator[Look]:
            yield Comparison(ledger, store, settings, name, partition).run

        yield looks

    topics = (topic.METRICS, topic.LOGS)
    return PeriodicSink("metrics-missing", topics, opened, every_s, Backoff(1.0, every_s))


class Comparison:
    """Compares a partition with the series, from its beginning to what they have of it."""

    def __init__(
        self, ledger: Ledger, store: SeriesStore, settings: Settings, name: str, partition: int
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._table = "logs" if name == topic.LOGS else "metrics"
        self._days = settings.logs_days if name == topic.LOGS else settings.metrics_days
        self._place: Final = (name, partition)
        self._position = 0
        """Of the next record to compare."""
        self._searched = 0
        """Position behind the last record that was searched for deletions."""
        self._deleted: dict[str, tuple[int, int]] = {}
        """Trial → the position of its last deletion, and before which time its lines go."""

    async def run(self) -> None:
        """Compare what the series have by now.

        Raises:
            LedgerError: the ledger does not answer.
            SeriesError: the series do not.
        """
        while (end := await self._end()) > self._position:
            started = time.perf_counter()
            try:
                await self._compare(min(_RECORDS, end - self._position))
            except LedgerTrimmed as trimmed:
                self._position = max(self._position, trimmed.first)
                self._searched = max(self._searched, trimmed.first)
            await asyncio.sleep(_REST * (time.perf_counter() - started))

    async def _end(self) -> int:
        """Return the position up to which the series have what the ledger has."""
        stored = (await self._store.positions()).get(self._place, 0)
        return min(stored, await self._ledger.end(*self._place))

    async def _compare(self, limit: int) -> None:
        records = await self._ledger.read(*self._place, self._position, limit)
        batch = await asyncio.to_thread(Batch.of, records)
        days = await self._store.days_kept(self._table, self._days)
        now_ms = time.time_ns() // 1_000_000
        for trial_id, part in batch.trials():
            kept = _kept(part, days, now_ms)
            if (await self._store.lacking(kept)).count:
                await self._fill(trial_id, kept)
        self._position = records[-1].position + 1

    async def _fill(self, trial_id: str, part: Batch) -> None:
        """Write the rows of a trial that the series lack, except those that were deleted."""
        while True:
            await self._search(await self._ledger.end(*self._place))
            part = self._without_deleted(trial_id, part)
            lacked = await self._store.fill(part, self._place, self._searched)
            if lacked is not None:
                break
        if not lacked.count:
            return
        for table, rows in lacked.rows.items():
            catalog.SERIES_LACKED.labels(table).inc(rows)
        name, partition = self._place
        _log.error(
            "the series lacked rows: they are written again from the ledger",
            trial=trial_id,
            rows=lacked.count,
            topic=name,
            partition=partition,
            position=self._position,
        )

    async def _search(self, end: int) -> None:
        """Find deletions before a position."""
        self._searched = max(self._searched, self._position)
        while self._searched < end:
            limit = min(_READ_MAX, end - self._searched)
            for record in await self._ledger.read(*self._place, self._searched, limit):
                self._searched = record.position + 1
                with contextlib.suppress(UndecodableEvent):
                    event = decode_handled(record.value, _DELETIONS)
                    if event is not None:
                        assert isinstance(event.data, LogsDeleted | MetricsDeleted), event
                        before_ms = getattr(event.data, "before_ms", 0)
                        self._deleted[event.data.trial_id] = record.position, before_ms

    def _without_deleted(self, trial_id: str, part: Batch) -> Batch:
        position, before_ms = self._deleted.get(trial_id, (-1, 0))
        if position < self._position:
            return part
        logs = part.logs
        later = [row for row, time_ms in enumerate(logs.time) if time_ms >= before_ms]
        return Batch(logs=logs.at(later))


def _kept(part: Batch, days: int, now_ms: int) -> Batch:
    """Return the rows that retention keeps for a while longer."""
    soon_ms = now_ms + _MARGIN_MS
    metrics, logs = part.metrics, part.logs
    limits = (
        min((kept for kept in (days, own) if kept), default=0) * _DAY_MS for own in logs.keep_days
    )
    return Batch(
        metrics=metrics.at(
            [
                row
                for row, time_ms in enumerate(metrics.time)
                if not days or time_ms + days * _DAY_MS > soon_ms
            ]
        ),
        logs=logs.at(
            [
                row
                for row, (time_ms, limit) in enumerate(zip(logs.time, limits, strict=True))
                if not limit or time_ms + limit > soon_ms
            ]
        ),
    )
