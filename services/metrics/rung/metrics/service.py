"""The metrics service: follows metrics and printed lines, and keeps the store up to date.

It goes on where the store's own positions say, not where the ledger remembers: the series can be
deleted, or restored from a backup, at any time. Records that cannot be read go to the dead letters
before they are skipped.

Several replicas may write into one database, each the partitions that are its own. It reads their
positions when it gets them. A replica that was stalled and writes late what another has written
meanwhile does no harm: equal rows are one row, and of two positions the higher one counts.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from rung.events import LedgerError, topic
from rung.ledger import Ledger, Record
from rung.ledger.seals import SealKey
from rung.metrics.errors import SeriesDamaged, SeriesUnavailable
from rung.metrics.log_quota import keep_within
from rung.metrics.settings import Settings
from rung.metrics.store import SeriesStore
from rung.metrics.trimming import keep_trimmed, removed_on_record
from rung.runtime import Rejected, dead_letter, say_rejected
from rung.runtime.assignment import Share, Whole
from rung.runtime.health.loops import waiting_for
from rung.runtime.metrics import catalog
from rung.runtime.retry import supervise

NAME: Final = "metrics"
TOPICS: Final = (topic.METRICS, topic.LOGS)
"""Those whose partitions replicas share."""

T = TypeVar("T")

_WAIT_S_MIN: Final = 0.1
_WAIT_S_MAX: Final = 10.0
_RETAIN_EVERY_S: Final = 21_600.0

_log = structlog.get_logger()


async def serve(
    ledger: Ledger,
    store: SeriesStore,
    settings: Settings | None = None,
    *,
    share: Share | None = None,
    key: SealKey | None = None,
) -> None:
    """Keep the store up to date with the ledger until cancelled.

    Args:
        ledger: followed; dead letters are appended to it.
        store: opened if it is not yet; the caller closes it.
        settings: sizes and times; their defaults if not given.
        share: the partitions of `metrics` and `logs` to keep; all of them if not given.
        key: signs the record of what is trimmed from `logs`; see `trimming`.

    Raises:
        SeriesError: the store cannot be used, see its message.
        LedgerError: the ledger cannot be used, and will not be by waiting.
    """
    settings = settings or Settings()
    intake = _Intake(ledger, store, settings)
    store.on_rejected(intake.reject)
    with catalog.SERIES_PENDING_BYTES.read_from(lambda: {(): float(store.pending_bytes)}):
        await patiently(store.open)
        await store.forget()
        work = partial(_keep, ledger, store, settings, intake, key)
        await _run(store, settings, intake, work, share or Whole(ledger))


async def _run(
    store: SeriesStore,
    settings: Settings,
    intake: "_Intake",
    work: Callable[[str, int], Coroutine[Any, Any, None]],
    share: Share,
) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(intake.cut())
            group.create_task(intake.write())
            group.create_task(_retain(store, settings))
            for name in TOPICS:
                group.create_task(share.hold(name, partial(work, name)))
    except ExceptionGroup as failures:
        raise _first(failures) from failures


def _first(error: Exception) -> Exception:
    """Return the first error of a group, also of one within it: a share may have its own."""
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Return what a call returns, made again and again while it fails for what may pass."""
    wait_s = _WAIT_S_MIN
    while True:
        try:
            return await call()
        except (SeriesUnavailable, LedgerError) as error:
            if not error.retriable:
                raise
            _log.warning("series behind", reason=str(error), wait_s=wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _WAIT_S_MAX)


async def _keep(  # noqa: PLR0913, PLR0917 - what all partitions share, and which one it is
    ledger: Ledger,
    store: SeriesStore,
    settings: Settings,
    intake: "_Intake",
    key: SealKey | None,
    name: str,
    partition: int,
) -> None:
    """Follow a partition from what is stored of it onwards, for ever; old lines are removed."""
    positions = await patiently(store.positions)
    start = positions.get((name, partition), 0)
    end = await patiently(partial(ledger.end, name, partition))
    if start > end:
        raise SeriesDamaged(
            f"{store.place} has partition {partition} of {name} up to {start}, the ledger ends at "
            f"{end}: was the ledger put back to an earlier copy? {store.remedy}"
        )
    first = await patiently(partial(ledger.start, name, partition))
    if start < first:
        await _say_what_is_gone(ledger, name, partition, range(start, first))
    follower = _Follower(ledger, intake, name, partition, max(start, first))
    limiting: list[asyncio.Task[None]] = []
    if name == topic.LOGS:
        days = settings.logs_days or 0
        trimmed = keep_trimmed(ledger, store, partition, days, key=key)
        limiting.append(asyncio.create_task(trimmed))
        if partition == 0 and settings.logs_total_bytes is not None:  # one replica does it for all
            within = keep_within(ledger, store, settings.logs_total_bytes)
            limiting.append(asyncio.create_task(within))
    try:
        await supervise(follower.run, name=f"{NAME}/{name}/{partition}")
    finally:
        for task in limiting:
            task.cancel()
        await asyncio.gather(*limiting, return_exceptions=True)


async def _say_what_is_gone(ledger: Ledger, name: str, partition: int, gone: range) -> None:
    """Log which records the series never had and the ledger has no more, and whether by intent."""
    kept = await patiently(partial(removed_on_record, ledger, name, partition))
    told = _log.bind(topic=name, partition=partition)
    if on_purpose := gone[: max(0, kept - gone.start)]:
        told.info("old records were removed by retention, as is on record", count=len(on_purpose))
    if not (lost := gone[len(on_purpose) :]):
        return
    if gone.start == 0:  # new series, or ones that are rebuilt: what earlier ones had is not known
        told.warning(
            "the series begin where the ledger does: it has no older records", count=len(lost)
        )
    else:
        told.error(
            "reports are gone: the ledger keeps them for less time than nobody stored them",
            lost=len(lost),
        )


async def _retain(store: SeriesStore, settings: Settings) -> None:
    """Have old rows dropped, by ClickHouse itself where it can, else now and then."""
    days: dict[str, int | None] = {"logs": settings.logs_days}
    if settings.metrics_days is not None:
        days["metrics"] = settings.metrics_days
    while days:
        for table, number in list(days.items()):
            now_ms = int(time.time() * 1_000)
            if await patiently(partial(store.retain, table, number, now_ms=now_ms)):
                del days[table]
        await asyncio.sleep(_RETAIN_EVERY_S)


class _Intake:
    """Between the followers and the store: holds them back while the store is behind.

    One batch is written while the next is gathered and decoded; more than two batches' worth is
    never taken in.
    """

    def __init__(self, ledger: Ledger, store: SeriesStore, settings: Settings) -> None:
        self._ledger = ledger
        self._store = store
        self._settings = settings
        self._came = asyncio.Event()
        self._full = asyncio.Event()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def take(self, records: Sequence[Record]) -> None:
        """Have the store absorb records as soon as there is room."""
        if not self._room.is_set():
            with waiting_for("the series"):
                await self._room.wait()
        self._store.absorb(records)
        self._came.set()
        if self._store.absorbed_bytes >= self._settings.flush_bytes:
            self._full.set()
        self._make_room()

    async def cut(self) -> None:
        """Have the store make batches of what it absorbed, by size and time, for ever."""
        while True:
            await self._came.wait()
            self._came.clear()
            # Not `wait_for`: Python 3.11's forgets a cancellation that comes as it returns.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.flush_seconds):
                    await self._full.wait()
            self._full.clear()
            await self._store.cut()
            self._ready.set()

    async def write(self) -> None:
        """Have the store write its batches, for ever."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while await patiently(self._store.write):
                self._make_room()
            self._make_room()

    async def reject(self, rejected: Sequence[Rejected]) -> None:
        """Put records that cannot be read on record as dead letters."""
        say_rejected(NAME, rejected)
        await self._ledger.append([dead_letter(self._ledger.id, NAME, item) for item in rejected])

    def _make_room(self) -> None:
        if self._store.pending_bytes < 2 * self._settings.flush_bytes:
            self._room.set()
        else:
            self._room.clear()


class _Follower:
    """One partition, from what the store has onwards."""

    def __init__(
        self, ledger: Ledger, intake: _Intake, name: str, partition: int, start: int
    ) -> None:
        self._ledger = ledger
        self._intake = intake
        self._topic = name
        self._partition = partition
        self._position = start

    async def run(self) -> None:
        """Follow until the ledger fails; then go on behind what was taken."""
        follow = self._ledger.follow(self._topic, self._partition, self._position)
        async for records in follow:
            await self._intake.take(records)
            self._position = records[-1].position + 1
