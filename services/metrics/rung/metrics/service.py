"""The metrics service: follows metrics and printed lines, and keeps the store up to date.

It goes on where the store's own positions say, not where the ledger remembers: the series folder
can be deleted, or restored from a backup, at any time. Records that cannot be read go to the dead
letters before they are skipped.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import structlog

from rung.events import LedgerError, topic
from rung.host import Rejected, dead_letter
from rung.host.supervise import supervise
from rung.ledger import Ledger, Record
from rung.metrics.config import Settings
from rung.metrics.errors import SeriesDamaged, SeriesUnavailable, remedy
from rung.metrics.store import SeriesStore

NAME: Final = "metrics"

_TOPICS: Final = (topic.METRICS, topic.LOGS)
_WAIT_S_MIN: Final = 0.1
_WAIT_S_MAX: Final = 10.0

_log = structlog.get_logger()


async def serve(ledger: Ledger, store: SeriesStore, settings: Settings | None = None) -> None:
    """Keep the store up to date with the ledger until cancelled.

    Args:
        ledger: followed; dead letters are appended to it.
        store: opened if it is not yet; the caller closes it.
        settings: sizes and times; their defaults if not given.

    Raises:
        SeriesError: the store cannot be used, see its message.
        LedgerError: the ledger cannot be used, and will not be by waiting.
    """
    settings = settings or Settings()
    intake = _Intake(ledger, store, settings)
    store.on_rejected(intake.reject)
    await store.open()
    await store.forget()
    positions = await store.positions()
    await _check_not_ahead(ledger, positions, store)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(intake.write())
            for name in _TOPICS:
                for partition in range(ledger.partitions(name)):
                    start = positions.get((name, partition), 0)
                    follower = _Follower(ledger, intake, name, partition, start)
                    group.create_task(supervise(follower.run, name=f"{NAME}/{name}/{partition}"))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


class _Intake:
    """Between the followers and the store: holds them back while the store is behind."""

    def __init__(self, ledger: Ledger, store: SeriesStore, settings: Settings) -> None:
        self._ledger = ledger
        self._store = store
        self._settings = settings
        self._came = asyncio.Event()
        self._full = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def take(self, records: Sequence[Record]) -> None:
        """Have the store absorb records as soon as there is room."""
        await self._room.wait()
        self._store.absorb(records)
        self._came.set()
        if self._store.pending_bytes >= self._settings.flush_bytes:
            self._room.clear()
            self._full.set()

    async def write(self) -> None:
        """Have the store write what it absorbed, for ever."""
        while True:
            await self._came.wait()
            self._came.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), self._settings.flush_seconds)
            await self._flush()
            self._full.clear()
            self._room.set()

    async def reject(self, rejected: Sequence[Rejected]) -> None:
        """Put records that cannot be read on record as dead letters."""
        for record, reason in rejected:
            _log.error(
                "message rejected",
                process=NAME,
                topic=record.topic,
                partition=record.partition,
                position=record.position,
                key=record.key,
                reason=reason,
            )
        await self._ledger.append([dead_letter(self._ledger.id, NAME, item) for item in rejected])

    async def _flush(self) -> None:
        wait_s = _WAIT_S_MIN
        while True:
            try:
                await self._store.flush()
            except (SeriesUnavailable, LedgerError) as error:
                if not error.retriable:
                    raise
                _log.warning("series behind", reason=str(error), wait_s=wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_S_MAX)
            else:
                return


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


async def _check_not_ahead(
    ledger: Ledger, positions: dict[tuple[str, int], int], store: SeriesStore
) -> None:
    """Refuse series of records that the ledger no longer has.

    Raises:
        SeriesDamaged: the ledger was put back to an earlier state.
    """
    for (name, partition), position in positions.items():
        end = await ledger.end(name, partition)
        if position > end:
            raise SeriesDamaged(
                f"{store.folder} has partition {partition} of {name} up to {position}, the ledger "
                f"ends at {end}: was the ledger put back to an earlier copy? "
                f"{remedy(store.folder)}"
            )
