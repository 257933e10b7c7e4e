"""The ledger as one SQLite file, for all processes of one machine.

`ledger.db` lies in a folder of its own, beside the locks of the `turnstile` and the sockets of
the `doorbell`. One thread writes (`writer`), a few read (`reader`); the event loop only queues
and is told. Several processes may have the same ledger open.

Write-ahead log with `synchronous=FULL`: what `append` returned has been synced to the disk.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from rung.events.errors import LedgerDamaged, LedgerMissing, LedgerUnavailable
from rung.ledger.port import Record
from rung.ledger.sqlite.errors import explain
from rung.ledger.sqlite.fair_lock import Turnstile
from rung.ledger.sqlite.integrity import check_size, check_whole
from rung.ledger.sqlite.notify import Ringer, sweep
from rung.ledger.sqlite.reader import Reader
from rung.ledger.sqlite.schema import (
    PARTITIONS_MAX,
    POSITIONS_MAX,
    check_version,
    connect,
    create,
    topic_numbers,
)
from rung.ledger.sqlite.tables import About, SqliteTables, retention_of
from rung.ledger.sqlite.transaction import SqliteTransaction
from rung.ledger.sqlite.watcher import Watcher
from rung.ledger.sqlite.writer import Outcome, Row, Statement, Write, Writer

FILE: Final = "ledger.db"
_BATCH: Final = 1000
_DOORBELLS: Final = "doorbells"
_ANNOUNCE: Final = "UPDATE ledger SET value = value + 1 WHERE name = 'doorbells'"

T = TypeVar("T")


class SqliteLedger(SqliteTables):
    """An open ledger in a folder; implements `rung.ledger.port.Ledger`."""

    @classmethod
    async def open(cls, folder: Path, *, partitions: int = 4, create: bool = True) -> Self:
        """Open the ledger in a folder, checking that it is whole.

        Args:
            folder: where `ledger.db` lies or will lie.
            partitions: of each topic, for a new ledger; an existing one keeps its own number.
            create: whether to make the folder and the file if they are not there.

        Raises:
            LedgerDamaged: the file is truncated, corrupt, of a newer version, or no ledger.
            LedgerUnavailable: the disk is full.
            LedgerMissing: there is none.
            LedgerError: it cannot be written.
        """
        path = folder / FILE
        try:
            about = await asyncio.to_thread(_prepare, path, partitions if create else None)
            return cls(about)
        except (sqlite3.Error, OSError) as error:
            raise explain(error, path) from error

    def __init__(self, about: About) -> None:
        super().__init__(about)
        path = about.path
        self._loop = asyncio.get_running_loop()
        self._staged: list[Write] = []
        self._closed = False
        self._gone = self._loop.create_future()
        doorbells = path.parent / _DOORBELLS
        self._reader = Reader(path)
        self._watcher = Watcher(doorbells, self._reader, self._announce)
        self._writer = Writer(
            path,
            ringer=Ringer(doorbells, self._watcher.doorbell),
            retention=retention_of(about),
            deliver=self._deliver,
        )

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended."""
        channel = await self._watcher.channel(self._first(topic, partition))
        await self.read(topic, partition, position, 1)
        while True:
            await channel.wait(position)
            read = partial(self.read, topic, partition, position, _BATCH)
            records = await channel.records(position, _BATCH, read)
            if not records:
                raise LedgerDamaged(
                    f"{self._path}: {topic}/{partition} ends at {position}, not at {channel.end}"
                )
            position = records[-1].position + 1
            yield records

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position, also from what followers share."""
        try:
            await super().trim(topic, partition, position)
        finally:
            await self._watcher.look()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqliteTransaction]:
        """Open one transaction; see `rung.ledger.port.Transactional`.

        Other writers of the file wait until it ends.
        """
        if self._closed:
            raise self._refusal()
        opened = SqliteTransaction(self._about, Ringer(self._path.parent / _DOORBELLS, ""))
        async with opened.running():
            yield opened

    async def close(self) -> None:
        """Finish pending appends and let go of the ledger; followers get LedgerUnavailable."""
        if not self._closed:
            self._closed = True
            self._submit()
            await self._watcher.close(self._refusal())
            await self._reader.close()
            self._writer.finish()  # last, so that its connection folds the write-ahead log in
        await asyncio.shield(self._gone)

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return await self._reader.run(query)

    async def _announce(self) -> None:
        await self._write((), 0, (_ANNOUNCE, ()))

    async def _write(
        self, rows: Sequence[Row], size: int, statement: Statement | None
    ) -> list[int]:
        if self._closed:
            raise self._refusal()
        done: asyncio.Future[list[int]] = self._loop.create_future()
        if not self._staged:  # all that is written in this turn of the loop goes together
            self._loop.call_soon(self._submit)
        self._staged.append(Write(rows, size, statement, done))
        return await done

    def _submit(self) -> None:
        if self._staged:
            self._writer.submit(self._staged)
            self._staged = []

    def _refusal(self) -> LedgerUnavailable:
        return LedgerUnavailable(f"the ledger {self._path} is closed")

    def _deliver(self, outcome: Outcome | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is gone, and who waited with it
            self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Outcome | None) -> None:
        if outcome is None:
            self._closed = True
            self._gone.set_result(None)
        elif outcome.failure is not None:
            for write in outcome.writes:
                if not write.done.done():
                    write.done.set_exception(outcome.failure)
        else:
            for write, positions in zip(outcome.writes, outcome.positions, strict=True):
                if not write.done.done():
                    write.done.set_result(positions)
            self._show(outcome)

    def _show(self, outcome: Outcome) -> None:
        """Hand what was appended to the followers in this process."""
        records: dict[int, list[Record]] = {}
        for write, positions in zip(outcome.writes, outcome.positions, strict=True):
            for (first, key, value), position in zip(write.rows, positions, strict=True):
                if self._watcher.watched(first):
                    name, partition = self._about.names[first]
                    record = Record(name, partition, position, key, value)
                    records.setdefault(first, []).append(record)
        for first, appended in records.items():
            self._watcher.appended(first, appended)


def _prepare(path: Path, partitions: int | None) -> About:
    """Check the file, after making it if `partitions` are given; blocks."""
    path = path.absolute()
    if partitions is not None:
        assert 0 < partitions <= PARTITIONS_MAX, partitions
        path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        if partitions is None:
            raise LedgerMissing(f"there is no ledger in {path.parent}")
        create(path, partitions)
    check_size(path)
    (path.parent / _DOORBELLS).mkdir(mode=0o700, exist_ok=True)
    sweep(path.parent / _DOORBELLS)
    with (
        contextlib.closing(Turnstile(path.parent)) as turnstile,
        turnstile,
        contextlib.closing(connect(path)) as database,
    ):
        check_version(database, path)
        check_whole(database, path)
        found: dict[str, str] = dict(database.execute("SELECT name, value FROM ledger").fetchall())
        numbers = topic_numbers(database)
    count = int(found["partitions"])
    firsts = {
        name: [(number << 10 | partition) * POSITIONS_MAX for partition in range(count)]
        for name, number in numbers.items()
    }
    names = {first: (name, part) for name, at in firsts.items() for part, first in enumerate(at)}
    return About(path, found["id"], count, firsts, names)
