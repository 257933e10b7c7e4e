"""The series of every trial: curves, best values, printed lines, kept in chDB.

A pure derivative of the ledger. Records are taken in as they come (`absorb`), decoded and written
in batches (`flush`): the rows first, then the positions up to which they were taken. A crash
between the two makes the rows come again, and the tables' keys make them one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import structlog

from rung.events import LedgerError
from rung.host import Rejected
from rung.ledger import Record
from rung.metrics import query
from rung.metrics.batch import Batch
from rung.metrics.engine import Engine
from rung.metrics.errors import SeriesUnavailable
from rung.metrics.query import LogEntry, LogQuery, Point, experiment_of
from rung.metrics.schema import claim, migrate

T = TypeVar("T")

Reject = Callable[[Sequence[Rejected]], Awaitable[None]]

_log = structlog.get_logger()


class SeriesStore:
    """The series in one chDB folder, which no other process may have open meanwhile.

    The folder is opened at the first use. Every query first writes what was absorbed, so that
    what the metrics service has seen is what a reader sees.
    """

    def __init__(self, folder: Path, *, ledger_id: str) -> None:
        """Prepare a store; nothing is opened yet.

        Args:
            folder: chDB's, `series/` of the data folder; made if need be.
            ledger_id: the ledger from which it derives; a folder of another is refused.
        """
        self._engine: Final = Engine(folder)
        self._ledger_id: Final = ledger_id
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._flushing: Final = asyncio.Lock()
        self._reject: Reject | None = None

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return self._engine.folder

    @property
    def pending_bytes(self) -> int:
        """How much was absorbed and is not written yet."""
        return self._pending_bytes

    async def open(self) -> None:
        """Open the folder now rather than at the first use.

        Raises:
            SeriesError: it is open elsewhere, damaged, of a newer version or of another ledger.
        """
        await self._run(lambda _: None)

    async def close(self) -> None:
        """Write what was absorbed and let go of the folder."""
        try:
            await self._flush_if_possible()
        finally:
            await self._engine.close()

    def on_rejected(self, reject: Reject) -> None:
        """Say where records go that cannot be read; they are passed on before they are skipped."""
        self._reject = reject

    def absorb(self, records: Sequence[Record]) -> None:
        """Take records in, of one partition in their order; `flush` writes them."""
        self._pending.extend(records)
        self._pending_bytes += sum(len(record.value) for record in records)

    async def flush(self) -> None:
        """Write what was absorbed; it is durable when this returns.

        Raises:
            SeriesUnavailable: it could not be written now; it stays absorbed.
        """
        async with self._flushing:
            records, self._pending = self._pending, []
            size, self._pending_bytes = self._pending_bytes, 0
            if not records:
                return
            try:
                batch = await self._run(lambda _: Batch.of(records))
                if batch.rejected and self._reject:
                    await self._reject(batch.rejected)
                await self._run(lambda engine: query.write(engine, batch))
            except BaseException:
                self._pending = records + self._pending
                self._pending_bytes += size
                raise

    async def forget(self) -> None:
        """Drop what was absorbed and not written: it is about to be read from the ledger again."""
        async with self._flushing:
            self._pending = []
            self._pending_bytes = 0

    async def positions(self) -> dict[tuple[str, int], int]:
        """Return the position from which on each topic and partition is not stored yet."""
        return await self._run(query.positions)

    async def curve(self, trial_id: str, kind: str, name: str, points: int) -> list[Point]:
        """Return a trial's metric by step, in at most `points` points.

        Of a longer curve the first and the last point stay, and of each stretch the lowest, the
        highest and the first one that is not finite.

        Raises:
            ValueError: `points` is out of range.
        """
        experiment_id = experiment_of(trial_id)
        curves = await self._fresh(
            lambda engine: query.curves(engine, experiment_id, trial_id, kind, name, points)
        )
        return curves.get(trial_id, [])

    async def overlay(
        self, experiment_id: str, kind: str, name: str, points: int
    ) -> dict[str, list[Point]]:
        """Return the curves of all trials of an experiment, each as `curve` does."""
        return await self._fresh(
            lambda engine: query.curves(engine, experiment_id, "", kind, name, points)
        )

    async def best(
        self,
        experiment_id: str,
        name: str,
        smaller_is_better: bool,  # noqa: FBT001 - the series interface
    ) -> dict[str, tuple[int, float]]:
        """Return each trial's best validation: its step and value; of equal ones the earliest."""
        sign = 1.0 if smaller_is_better else -1.0
        return await self._fresh(lambda engine: query.best(engine, experiment_id, name, sign))

    async def names(self, experiment_id: str) -> list[tuple[str, str]]:
        """Return the kind and name of every metric that an experiment reported, sorted."""
        return await self._fresh(lambda engine: query.names(engine, experiment_id))

    async def logs(  # noqa: PLR0913 - what lines can be chosen by
        self,
        *,
        experiment_id: str | None,
        trial_id: str | None,
        rank: int | None,
        level: str | None,
        text: str | None,
        since_ms: int | None,
        until_ms: int | None,
        after: str | None,
        limit: int,
    ) -> tuple[list[LogEntry], str | None]:
        """Return printed lines by time, and where the next page begins, None if there is none.

        Args:
            experiment_id: of this experiment only.
            trial_id: of this trial only.
            rank: of this rank only.
            level: of this level or a more severe one.
            text: that contain this, in upper or lower case.
            since_ms: printed then or later.
            until_ms: printed before then.
            after: the cursor that came with the page before.
            limit: at most so many lines.

        Raises:
            ValueError: the level, the cursor or the limit is none.
        """
        asked = LogQuery(
            experiment_id, trial_id, rank, level, text, since_ms, until_ms, after, limit
        )
        return await self._fresh(lambda engine: query.logs(engine, asked))

    async def _fresh(self, call: Callable[[Engine], T]) -> T:
        await self._flush_if_possible()
        return await self._run(call)

    async def _flush_if_possible(self) -> None:
        try:
            await self.flush()
        except (SeriesUnavailable, LedgerError) as error:
            _log.warning("series behind", reason=str(error), pending_bytes=self._pending_bytes)

    async def _run(self, call: Callable[[Engine], T]) -> T:
        return await self._engine.run(lambda: call(self._ready()))

    def _ready(self) -> Engine:
        if not self._engine.connected:
            self._engine.connect()
            try:
                migrate(self._engine)
                claim(self._engine, self._ledger_id)
            except BaseException:
                self._engine.disconnect()
                raise
        return self._engine
