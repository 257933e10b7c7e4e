"""Series store: curves, best values and printed lines of all trials, in ClickHouse.

It derives from the ledger alone. Records are absorbed as they come, cut into batches and written:
the rows of a batch first, then the positions behind its records, and a batch only after all before
it. After a crash in between, rows are written again, and the tables' keys make them one; a batch
that failed is written again as it was, so that a server that remembers its newest blocks does not
even store it twice.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from rung.api import LogLine, LogSelection, TrialLines
from rung.events import LedgerError
from rung.ledger import Record
from rung.metrics import curves, queries
from rung.metrics.batch import Batch
from rung.metrics.clickhouse.address import is_address, read_address
from rung.metrics.clickhouse.embedded import Embedded
from rung.metrics.clickhouse.engine import Engine, Tables
from rung.metrics.clickhouse.errors import SeriesDamaged, SeriesError, SeriesUnavailable
from rung.metrics.clickhouse.schema import Plan, migrate, plan, prepare
from rung.metrics.clickhouse.server import Server
from rung.metrics.curves import Point
from rung.metrics.queries import experiment_of
from rung.metrics.retention import days_kept, retain
from rung.runtime.metrics import catalog
from rung.runtime.sink.batch_sink import Reject

T = TypeVar("T")

_CURVES_AT_ONCE: Final = 100
"""Recounted in one go, which takes the one thread of chDB."""

_log = structlog.get_logger()


class SeriesStore:
    """The series in one chDB folder, or in one database of a ClickHouse server.

    It is opened at the first use. Every query first writes what was absorbed, so that a reader in
    the process of the metrics service sees all that the service has read.
    """

    def __init__(
        self,
        place: str | Path | Engine,
        *,
        ledger_id: str,
        read_only: bool = False,
        migrates: bool = True,
    ) -> None:
        """Prepare a store; nothing is opened yet.

        Args:
            place: `clickhouse://user@host:9000/database`, with the password in
                RUNG_CLICKHOUSE_PASSWORD; the path of a chDB folder, made if need be; or an engine.
            ledger_id: the ledger from which it derives; series of another are refused.
            read_only: only queries are asked; nothing is written, made or changed.
            migrates: bring the tables to this version; if not, older ones are refused.

        Raises:
            ValueError: `place` is no address of a database; the message names what would be right.
        """
        self._engine: Final = _engine_at(place, read_only=read_only)
        self._read_only: Final = read_only
        self._migrates: Final = migrates
        self._prepare: Final = partial(
            prepare, ledger_id=ledger_id, read_only=read_only, migrates=migrates
        )
        self._absorbed: list[Record] = []
        self._absorbed_bytes = 0
        self._pending_bytes = 0
        self._batches: Final[deque[Batch]] = deque()
        self._generation = 0
        """How often the folder was set aside."""
        self._damage: asyncio.Future[SeriesDamaged] | None = None
        self.opened: Final = asyncio.Event()
        """Set while it is open."""
        self._opening: Final = asyncio.Lock()
        self._cutting: Final = asyncio.Lock()
        self._writing: Final = asyncio.Lock()
        self._reject: Reject | None = None
        self._lacked = 0

    @property
    def place(self) -> str:
        """Its address or folder, for messages."""
        return self._engine.place

    @property
    def remedy(self) -> str:
        """What to do where its contents cannot be used, for messages."""
        return self._engine.remedy

    @property
    def rebuilds(self) -> bool:
        """Whether a folder that cannot be used may be set aside, and rebuilt.

        A database of a server is its operator's, and tables that others make cannot be made here.
        """
        return isinstance(self._engine, Embedded) and self._migrates and not self._read_only

    @property
    def absorbed_bytes(self) -> int:
        """Bytes that were absorbed and are in no batch yet."""
        return self._absorbed_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes that were absorbed and are not written yet."""
        return self._pending_bytes

    @property
    def warning(self) -> str | None:
        """What is to be known of rows that were missing since the start; None: none were."""
        if not self._lacked:
            return None
        rows = "1 row" if self._lacked == 1 else f"{self._lacked:,} rows"
        return (
            f"the series in {self.place} lacked {rows} of curves and logs: rebuilt from the"
            " ledger; look for the cause (disk, memory)"
        )

    async def open(self) -> None:
        """Open it now rather than at the first use.

        Raises:
            SeriesUnavailable: it cannot be opened now.
            SeriesError: it is open elsewhere, damaged, of a newer version or of another ledger.
        """
        await self._run(lambda _: None)

    async def unready(self) -> str | None:
        """Return why a small query fails, None if it does not."""
        try:
            await self.positions()
        except SeriesError as error:
            return str(error)
        return None

    async def close(self) -> None:
        """Write what was absorbed, if that is possible now, and close the engine."""
        try:
            await self._flush_if_possible()
        finally:
            await self._engine.close()

    @contextlib.asynccontextmanager
    async def serving(self, reject: Reject) -> AsyncIterator[None]:
        """Open it, with nothing absorbed.

        Args:
            reject: called with records that cannot be read, before they are skipped.
        """
        self._reject = reject
        with catalog.SERIES_PENDING_BYTES.read_from(lambda: {(): float(self._pending_bytes)}):
            await self.open()
            await self._forget()
            yield

    def ahead(self, topic: str, partition: int, start: int, end: int) -> SeriesDamaged:
        """Return the error where it has more of a partition than the ledger."""
        return SeriesDamaged(
            f"{self.place} has partition {partition} of {topic} up to {start}, the ledger ends at "
            f"{end}: was the ledger put back to an earlier copy? {self.remedy}"
        )

    def absorb(self, records: Sequence[Record]) -> None:
        """Take records in, of one partition in their order; `flush` writes them."""
        assert not self._read_only, "a store for queries takes nothing in"
        size = sum(len(record.value) for record in records)
        self._absorbed.extend(records)
        self._absorbed_bytes += size
        self._pending_bytes += size

    async def cut(self) -> None:
        """Decode what was absorbed to a batch, which `flush` writes; off the event loop."""
        async with self._cutting:
            records, self._absorbed = self._absorbed, []
            size, self._absorbed_bytes = self._absorbed_bytes, 0
            if not records:
                return
            try:
                self._batches.append(await asyncio.to_thread(Batch.of, records))
            except BaseException:
                self._absorbed = records + self._absorbed
                self._absorbed_bytes += size
                raise

    async def flush(self) -> None:
        """Write what was absorbed; it is stored when this returns.

        Raises:
            SeriesUnavailable: it could not be written now; it stays absorbed.
        """
        await self.cut()
        while await self.write():
            pass

    async def write(self) -> bool:
        """Write the oldest batch; return whether there was one.

        Raises:
            SeriesUnavailable: it could not be written now; it stays the oldest.
        """
        async with self._writing:
            if not self._batches:
                return False
            batch = self._batches[0]
            if batch.rejected and self._reject:
                await self._reject(batch.rejected)
                batch.rejected.clear()  # once, however often the batch is tried
            started = time.perf_counter()
            await self._run(lambda tables: queries.write(tables, batch))
            catalog.SERIES_FLUSH_SECONDS.observe(time.perf_counter() - started)
            for table, rows in batch.rows.items():
                catalog.SERIES_ROWS.labels(table).inc(rows)
            self._batches.popleft()
            self._pending_bytes -= batch.size
            return True

    async def write_again(self, record: Record) -> str | None:
        """Write a record that was rejected before; return why it cannot be, None if it was."""
        batch = await asyncio.to_thread(Batch.of, [record])
        if batch.rejected:
            return batch.rejected[0].reason
        batch.positions.clear()
        async with self._writing:
            await self._run(lambda tables: queries.write(tables, batch))
        return None

    async def lacking(self, part: Batch) -> Batch:
        """Return those of a trial's rows that are not stored."""
        return await self._run(lambda tables: queries.lacking(tables, part))

    async def fill(self, part: Batch, place: tuple[str, int], until: int) -> Batch | None:
        """Write those of a trial's rows that are not stored, while nothing else is written.

        Args:
            part: the rows, without those that records before `until` delete.
            place: the topic and the partition from which they are.
            until: a position in it.

        Returns:
            What was written; None, and nothing was, where records behind `until` are stored.
        """
        async with self._writing:
            if (await self.positions()).get(place, 0) > until:
                return None
            lacked = await self.lacking(part)
            await self._run(lambda tables: queries.write_again(tables, lacked))
            self._lacked += lacked.count
            return lacked

    async def days_kept(self, table: str, days: int | None) -> int:
        """Return after how many days rows of a table are dropped, 0: never.

        Args:
            table: `metrics` or `logs`.
            days: as they are set, see `retain`: an old server has no record of them.
        """
        known = await self._run(lambda tables: days_kept(tables, table))
        return min((kept for kept in (known, days) if kept), default=0)

    async def _forget(self) -> None:
        """Drop what was absorbed and not written: it will be read from the ledger again."""
        async with self._cutting, self._writing:
            self._drop_absorbed()

    async def damaged(self) -> SeriesDamaged:
        """Wait until a call finds that the contents cannot be used; return why."""
        if self._damage is None or self._damage.done():
            self._damage = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._damage)

    async def set_aside(self, mark: str) -> str:
        """Rename the folder and start an empty one; return the new path of the old one.

        Args:
            mark: ends the new name.

        Raises:
            SeriesDamaged: it cannot be renamed.
        """
        assert isinstance(self._engine, Embedded), "a database of a server is its operator's"
        assert self.rebuilds, "there would be no tables in the empty one"
        async with self._cutting, self._writing, self._opening:
            self._generation += 1
            self.opened.clear()
            self._damage = None
            self._drop_absorbed()
            return str(await self._engine.set_aside(mark))

    async def retain(self, table: str, days: int | None, *, now_ms: int) -> bool:
        """Set the days after which rows of a table are dropped, see `retention.retain`."""
        return await self._run(lambda tables: retain(tables, table, days, now_ms=now_ms))

    async def recount(self) -> None:
        """Build stretches of which reports were replaced or stored twice anew."""
        doubtful = await self._run(curves.doubtful)
        for start in range(0, len(doubtful), _CURVES_AT_ONCE):
            some = doubtful[start : start + _CURVES_AT_ONCE]
            await self._run(partial(curves.recount, chosen=some))

    async def positions(self) -> dict[tuple[str, int], int]:
        """Return the position from which on each topic and partition is not stored yet."""
        return await self._run(queries.positions)

    async def curve(self, trial_id: str, kind: str, name: str, points: int) -> list[Point]:
        """Return a trial's metric by step, in at most `points` points.

        Of a longer curve the first and the last point stay, and of each stretch the lowest, the
        highest and the first one that is not finite.

        Raises:
            ValueError: `points` is out of range.
        """
        experiment_id = experiment_of(trial_id)
        found = await self._fresh(
            lambda tables: curves.curves(tables, experiment_id, trial_id, kind, name, points)
        )
        return found.get(trial_id, [])

    async def overlay(
        self, experiment_id: str, kind: str, name: str, points: int
    ) -> dict[str, list[Point]]:
        """Return the curves of all trials of an experiment, each as `curve` does."""
        return await self._fresh(
            lambda tables: curves.curves(tables, experiment_id, "", kind, name, points)
        )

    async def best(
        self,
        experiment_id: str,
        name: str,
        smaller_is_better: bool,  # noqa: FBT001 - the series interface
    ) -> dict[str, tuple[int, float]]:
        """Return each trial's best validation: its step and value; of equal ones the earliest."""
        sign = 1.0 if smaller_is_better else -1.0
        return await self._fresh(lambda tables: curves.best(tables, experiment_id, name, sign))

    async def names(self, experiment_id: str) -> list[tuple[str, str]]:
        """Return the kind and name of every metric that an experiment reported, sorted."""
        return await self._fresh(lambda tables: queries.names(tables, experiment_id))

    async def logs(self, selection: LogSelection) -> tuple[list[LogLine], str | None]:
        """Return a page of printed lines, and the cursor of the next one, None at the end.

        Raises:
            ValueError: the level, the order, the cursor or the limit is none.
        """
        return await self._fresh(lambda tables: queries.logs(tables, selection))

    async def log_sizes(self, experiment_id: str | None, before_ms: int) -> list[TrialLines]:
        """Return how many lines each trial of an experiment, or of all, printed before a time."""
        return await self._fresh(
            lambda tables: queries.log_sizes(tables, experiment_id, before_ms)
        )

    async def deletions(self) -> dict[str, int]:
        """Return, by trial, the Unix time in milliseconds before which its lines were deleted."""
        return await self._run(queries.deletions)

    async def _fresh(self, call: Callable[[Tables], T]) -> T:
        await self._flush_if_possible()
        return await self._run(call)

    async def _flush_if_possible(self) -> None:
        try:
            await self.flush()
        except (SeriesUnavailable, LedgerError) as error:
            _log.warning("series behind", reason=str(error), bytes=self.pending_bytes)

    def _drop_absorbed(self) -> None:
        self._absorbed = []
        self._absorbed_bytes = 0
        self._pending_bytes = 0
        self._batches.clear()

    async def _run(self, call: Callable[[Tables], T]) -> T:
        generation = self._generation
        try:
            if not self.opened.is_set():
                await self._open()
            return await self._engine.run(call)
        except SeriesDamaged as error:
            if generation == self._generation and self._damage and not self._damage.done():
                self._damage.set_result(error)
            raise

    async def _open(self) -> None:
        async with self._opening:
            if self.opened.is_set():
                return
            try:
                await self._engine.run(self._prepare)
            except BaseException:
                await self._engine.release()
                raise
            self.opened.set()


async def migrate_series(
    place: str | Path, *, days: Mapping[str, int], now_ms: int, dry_run: bool
) -> Plan:
    """Bring the tables of a database or folder to this version; return what was to be done.

    Args:
        place: an address or a folder, as `SeriesStore` takes it.
        days: for tables whose retention is to be set, the days; 0: for ever.
        now_ms: the present time, Unix time in milliseconds.
        dry_run: change nothing.

    Raises:
        ValueError: `place` is no address of a database.
        SeriesError: it cannot be opened, or a newer version made its tables.
    """
    engine = _engine_at(place, read_only=dry_run)
    if isinstance(engine, Embedded) and not engine.folder.is_dir():
        raise SeriesError(f"{engine.folder}: there is no such folder")
    try:
        if dry_run:
            return await engine.run(plan)
        todo = await engine.run(migrate)
        for table, kept in ({"logs": None} | dict(days)).items():
            await engine.run(partial(retain, table=table, days=kept, now_ms=now_ms))
        return todo
    finally:
        await engine.close()


def _engine_at(place: str | Path | Engine, *, read_only: bool) -> Engine:
    if isinstance(place, str) and is_address(place):
        return Server(read_address(place), read_only=read_only)
    return Embedded(Path(place)) if isinstance(place, str | Path) else place
