"""The components of metrics: the series sink, retention, the quota of logs, and trimming.

The sink goes on from the positions in the store, not from ones in the ledger: so the store can be
deleted, or restored from a backup, at any time. Several replicas may write into one database, each
its own partitions. A replica that was stalled and writes late what another has written
meanwhile does no harm: equal rows are one row, and of two positions the higher one counts.
"""

import asyncio
import time
from functools import partial
from typing import Final

import structlog

from rung.events import topic
from rung.ledger import Ledger
from rung.ledger.seals import SealKey
from rung.metrics.clickhouse.errors import SeriesDamaged, SeriesError
from rung.metrics.log_quota import keep_within
from rung.metrics.missing import completing
from rung.metrics.settings import Settings
from rung.metrics.store import SeriesStore
from rung.metrics.trimming import removed_on_record, trimming
from rung.runtime.assignment.assignment import Assignment
from rung.runtime.retry import retry
from rung.runtime.service import Component, Singleton
from rung.runtime.service import serve as serve_components
from rung.runtime.sink.batch_sink import BatchSink

NAME: Final = "metrics"
TOPICS: Final = (topic.METRICS, topic.LOGS)
"""Those whose partitions replicas share."""

_RETAIN_EVERY_S: Final = 21_600.0
_RECOUNT_EVERY_S: Final = 3_600.0

_log = structlog.get_logger()


def components(
    store: SeriesStore, settings: Settings | None = None, *, key: SealKey | None = None
) -> tuple[Component, ...]:
    """Return what keeps a store up to date with a ledger, and both within limits.

    Args:
        store: opened if it is not yet; the caller closes it.
        settings: sizes and times; their defaults if not given.
        key: signs the record of what is trimmed from `logs`; see `trimming`.
    """
    settings = settings or Settings()
    found: list[Component] = [
        BatchSink(NAME, TOPICS, store, settings.flush_bytes, settings.flush_seconds, _log_gone),
        trimming(store, settings.logs_days or 0, key=key),
        completing(store, settings),
        Singleton("metrics-retention", topic.METRICS, partial(_retain, store, settings)),
        Singleton("metrics-recount", topic.METRICS, partial(_recount, store)),
    ]
    if (most := settings.logs_total_bytes) is not None:

        async def limit(ledger: Ledger) -> None:
            await keep_within(ledger, store, most)

        found.append(Singleton("metrics-quota", topic.LOGS, limit, appends=(topic.LOGS,)))
    return tuple(found)


async def serve(
    ledger: Ledger,
    store: SeriesStore,
    settings: Settings | None = None,
    *,
    assignment: Assignment | None = None,
    key: SealKey | None = None,
) -> None:
    """Keep the store up to date with the ledger until cancelled.

    Args:
        ledger: followed; dead letters are appended to it.
        store: as `components` takes it.
        settings: as `components` takes them.
        assignment: the partitions of `metrics` and `logs` to keep; all of them if not given.
        key: as `components` takes it.

    Raises:
        SeriesError: the store cannot be used, see its message.
        LedgerError: the ledger cannot be used, and will not be by waiting.
    """
    try:
        await serve_components(ledger, components(store, settings, key=key), assignment)
    except ExceptionGroup as failures:
        raise _first(failures) from failures


def _first(error: Exception) -> Exception:
    """Return the first error of a group, also of a nested one."""
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


async def _log_gone(ledger: Ledger, name: str, partition: int, gone: range) -> None:
    """Log which records the series never had and the ledger has no more, and why."""
    kept = await removed_on_record(ledger, name, partition)
    log = _log.bind(topic=name, partition=partition)
    if on_record := gone[: max(0, kept - gone.start)]:
        log.info("old records were removed by retention, as is on record", count=len(on_record))
    if not (lost := gone[len(on_record) :]):
        return
    if gone.start == 0:  # new or rebuilt series: what earlier ones had is not known
        log.warning(
            "the series begin where the ledger does: it has no older records", count=len(lost)
        )
    else:
        log.error(
            "reports are lost: the ledger removed them before they were stored", lost=len(lost)
        )


async def _retain(store: SeriesStore, settings: Settings, _: Ledger) -> None:
    """Set the tables' TTL; where ClickHouse has none, delete old rows every few hours."""
    days: dict[str, int | None] = {"logs": settings.logs_days}
    if settings.metrics_days is not None:
        days["metrics"] = settings.metrics_days
    while days:
        for table, number in list(days.items()):
            now_ms = int(time.time() * 1_000)
            drop = partial(store.retain, table, number, now_ms=now_ms)
            if await retry(drop, "old rows not dropped", table=table):
                del days[table]
        await asyncio.sleep(_RETAIN_EVERY_S)
    await asyncio.Event().wait()  # the tables have a TTL


async def _recount(store: SeriesStore, _: Ledger) -> None:
    """Build stretches in doubt anew, at the start and every hour: they make queries fast."""
    while True:
        try:
            await retry(store.recount, "stretches of curves not built anew")
        except SeriesDamaged:
            raise
        except SeriesError as error:
            _log.warning("stretches of curves not built anew", reason=str(error))
        await asyncio.sleep(_RECOUNT_EVERY_S)
