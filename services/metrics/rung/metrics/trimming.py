"""Trimming: removes the oldest printed lines from the ledger, once they are no longer kept.

A partition is cut at its beginning: the records before the first one with a line that is still
kept. A line is no longer kept after the days of the installation or of its experiment, or once a
user deleted it; and never before the series have it.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import structlog

from rung.backoff import Backoff
from rung.events import LedgerError, UndecodableEvent, decode, topic
from rung.events.metric import LogsDropped, LogsPrinted
from rung.events.seal import PartitionTrimmed
from rung.ledger import Ledger, Record
from rung.ledger.seals import SealKey, record_trim, seals_partition
from rung.metrics.store import SeriesStore
from rung.runtime import now
from rung.runtime.sink.batch_sink import Look, Looks, PeriodicSink

EVERY_S: Final = 3_600.0
_BATCH: Final = 100
_DAY_MS: Final = 86_400_000

_log = structlog.get_logger()


def trimming(
    store: SeriesStore, days: int, *, key: SealKey | None = None, every_s: float = EVERY_S
) -> PeriodicSink:
    """Return what trims `logs` periodically.

    Args:
        store: the series; what they do not have stays.
        days: after which lines go, 0: never, but for those of experiments with days of their own.
        key: signs the record of what is removed. A ledger that has seals is not trimmed without
            it: on Kafka, where checkpoint-gc alone has the key, brokers remove old records.
        every_s: the period in seconds.
    """

    @contextlib.contextmanager
    def opened(ledger: Ledger) -> Iterator[Looks]:
        @contextlib.contextmanager
        def looks(_: str, partition: int) -> Iterator[Look]:
            yield partial(trim, ledger, store, partition, days, key=key)

        yield looks

    return PeriodicSink("metrics-trimming", (topic.LOGS,), opened, every_s, Backoff(1.0, every_s))


async def trim(
    ledger: Ledger, store: SeriesStore, partition: int, days: int, *, key: SealKey | None = None
) -> None:
    """Trim a partition of `logs`.

    Raises:
        LedgerError: it may work in a moment.
        SeriesError: the positions of the series cannot be read.
    """
    now_ms = time.time_ns() // 1_000_000
    try:
        position = await expired(ledger, store, partition, days, now_ms=now_ms)
        if position > (start := await ledger.start(topic.LOGS, partition)):
            removed = await remove(ledger, partition, position, key) - start
            _log.info("old lines removed", partition=partition, records=removed)
    except LedgerError as error:
        if error.retriable:
            raise
        _log.warning("old lines not removed", partition=partition, reason=str(error))


async def expired(
    ledger: Ledger, store: SeriesStore, partition: int, days: int, *, now_ms: int
) -> int:
    """Return the position of the first record of a partition of `logs` that is still kept."""
    stored = (await store.positions()).get((topic.LOGS, partition), 0)
    deleted = await store.deletions()
    position = await ledger.start(topic.LOGS, partition)
    while position < stored:
        for record in await ledger.read(topic.LOGS, partition, position, _BATCH):
            if record.position >= stored or not _gone(record, deleted, days, now_ms):
                return record.position
            position = record.position + 1
    return position


async def removed_on_record(ledger: Ledger, name: str, partition: int) -> int:
    """Return the first position that retention kept of a partition, by the record of it; 0: all.

    Removals by brokers, and from a ledger without seals, are not on record. The signature is not
    checked here; `rung verify` does that.
    """
    where = seals_partition(ledger, name, partition)
    position = first = 0
    while records := await ledger.read(topic.SEALS, where, position, _BATCH):
        position = records[-1].position + 1
        for record in records:
            try:
                data = decode(record.value).data
            except UndecodableEvent:
                continue
            if isinstance(data, PartitionTrimmed) and (data.topic, data.partition) == (
                name,
                partition,
            ):
                first = max(first, data.first)
    return first


async def remove(ledger: Ledger, partition: int, position: int, key: SealKey | None) -> int:
    """Remove the records of a partition of `logs` before a position; return the first one kept.

    The cut is at the end of a sealed range, and is on record before records are removed.
    """
    kept = await record_trim(ledger, key, topic.LOGS, partition, position, time=now())
    await ledger.trim(topic.LOGS, partition, kept)
    return kept


def _gone(record: Record, deleted: Mapping[str, int], days: int, now_ms: int) -> bool:
    """Return whether no line of a record is kept any more."""
    try:
        data = decode(record.value).data
    except UndecodableEvent:
        return True  # it is among the dead letters
    match data:
        case LogsPrinted():
            last_ms = max((line.time_ms for line in data.lines), default=0)
        case LogsDropped():
            last_ms = data.time_ms
        case _:  # a deletion of lines that lie before it
            return True
    kept = [number for number in (days, data.keep_days) if number]
    if kept and last_ms < now_ms - min(kept) * _DAY_MS:
        return True
    return last_ms < deleted.get(data.trial_id, 0)
