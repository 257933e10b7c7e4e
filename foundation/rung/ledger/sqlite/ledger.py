"""The ledger as one SQLite file, for all processes of one machine.

`ledger.db` lies in its own folder, beside the files of `fair_lock` and the sockets of `notify`.
One thread writes (`writer`), a few read (`reader`); the event loop groups writes to transactions
(`group_commit`). Several processes may have the same ledger open.

Write-ahead log with `synchronous=FULL`: what `append` returned has been synced to the disk.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from rung.events.errors import LedgerDamaged, LedgerMissing
from rung.ledger.channel import Channel
from rung.ledger.port import Record
from rung.ledger.sqlite.errors import explain
from rung.ledger.sqlite.fair_lock import FairLock
from rung.ledger.sqlite.group_commit import GroupCommit
from rung.ledger.sqlite.integrity import check_integrity, check_size
from rung.ledger.sqlite.notify import FOLDER, Notifier, remove_unfinished
from rung.ledger.sqlite.reader import Reader
from rung.ledger.sqlite.schema import (
    PARTITIONS_MAX,
    POSITIONS_MAX,
    check_version,
    connect,
    create,
    topic_numbers,
)
from rung.ledger.sqlite.tables import Metadata, SqliteTables
from rung.ledger.sqlite.transaction import SqliteTransaction
from rung.ledger.sqlite.watcher import Watcher
from rung.ledger.sqlite.writer import Row, Statement

FILE: Final = "ledger.db"
_BATCH: Final = 1000
_ANNOUNCE: Final = "UPDATE ledger SET value = value + 1 WHERE name = 'doorbells'"

T = TypeVar("T")


class SqliteLedger(SqliteTables):
    """An open ledger in a folder; implements `rung.ledger.port.Ledger`."""

    @classmethod
    async def open(cls, folder: Path, *, partitions: int = 4, create: bool = True) -> Self:
        """Open the ledger in a folder, checking its integrity.

        Args:
            folder: where `ledger.db` lies or will lie.
            partitions: of each topic, for a new ledger; an existing one keeps its own number.
            create: whether to make the folder and the file if they are missing.

        Raises:
            LedgerDamaged: the file is truncated, corrupt, of a newer version, or no ledger.
            LedgerUnavailable: the disk is full.
            LedgerMissing: there is none.
            LedgerError: it cannot be written.
        """
        path = folder / FILE
        try:
            metadata = await asyncio.to_thread(_prepare, path, partitions if create else None)
            return cls(metadata)
        except (sqlite3.Error, OSError) as error:
            raise explain(error, path) from error

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        sockets = metadata.path.parent / FOLDER
        self._closed = False
        self._reader = Reader(metadata.path)
        self._watcher = Watcher(sockets, self._reader, self._announce)
        notifier = Notifier(sockets, self._watcher.socket_name)
        self._commits = GroupCommit(metadata, notifier, self._watcher)

    def staged(self) -> "SqliteStaged":
        """Return the ledger including staged records; see `rung.ledger.port.Staging`."""
        return SqliteStaged(self._metadata, self, self._watcher, self._commits)

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
                raise _cut_off(self._path, topic, partition, position, channel)
            position = records[-1].position + 1
            yield records

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position, also from the channels of followers."""
        try:
            await super().trim(topic, partition, position)
        finally:
            await self._watcher.refresh()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqliteTransaction]:
        """Open one transaction; see `rung.ledger.port.Transactional`.

        Other writers of the file wait until it ends.
        """
        if self._closed:
            raise self._commits.refusal
        opened = SqliteTransaction(self._metadata, Notifier(self._path.parent / FOLDER, ""))
        async with opened.running():
            yield opened

    async def close(self) -> None:
        """Finish pending appends and close the ledger; followers get LedgerUnavailable."""
        self._closed = True
        await self._commits.drain()
        await self._watcher.close(self._commits.refusal)
        await self._reader.close()
        await self._commits.close()  # last, so that its connection checkpoints the write-ahead log

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return await self._reader.run(query)

    async def _announce(self) -> None:
        await self._write((), 0, (_ANNOUNCE, ()))

    async def _write(
        self, rows: Sequence[Row], size: int, statement: Statement | None
    ) -> list[int]:
        if self._closed:
            raise self._commits.refusal
        return await self._commits.write(rows, size, statement, staged=False)


class SqliteStaged(SqliteTables):
    """The ledger including staged records, until a commit fails; see `group_commit`."""

    def __init__(
        self, metadata: Metadata, durable: SqliteLedger, watcher: Watcher, commits: GroupCommit
    ) -> None:
        super().__init__(metadata)
        self._durable = durable
        self._watcher = watcher
        self._commits = commits
        self._epoch = commits.epoch

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on, staged ones included."""
        first = self._first(topic, partition)
        while True:
            self._check()
            commits, staged = self._commits.commits, self._commits.staged(first)
            if staged and position >= staged[0].position:
                begin = position - staged[0].position
                return list(staged[begin : begin + limit])
            records = await self._durable.read(topic, partition, position, limit)
            if records or commits == self._commits.commits:
                return records

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        staged = self._commits.staged(self._first(topic, partition))
        return staged[-1].position + 1 if staged else await self._durable.end(topic, partition)

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are staged."""
        first = self._first(topic, partition)
        channel = await self._watcher.channel(first)
        await self.read(topic, partition, position, 1)
        if staged := self._commits.staged(first):
            channel.stage(staged[0].position, staged)
        with channel.staged_follower(position) as place:
            while True:
                self._commits.commit_when_idle()
                self._check()
                await channel.wait_staged(place)
                position = place.position
                read = partial(self._durable.read, topic, partition, position, _BATCH)
                records = await channel.records(position, _BATCH, read, staged=True)
                if not records:
                    raise _cut_off(self._path, topic, partition, position, channel)
                place.position = records[-1].position + 1
                yield records

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position."""
        await self._durable.trim(topic, partition, position)

    async def close(self) -> None:
        """Close the ledger."""
        await self._durable.close()

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        await self._commits.flush()
        self._check()
        return await self._durable._read(query)  # noqa: SLF001 - of the same ledger

    async def _write(
        self, rows: Sequence[Row], size: int, statement: Statement | None
    ) -> list[int]:
        self._check()
        return await self._commits.write(rows, size, statement, staged=True)

    def _check(self) -> None:
        if self._epoch != self._commits.epoch:
            assert self._commits.failure is not None, "a commit failed"
            raise self._commits.failure


def _cut_off(
    path: Path, topic: str, partition: int, position: int, channel: Channel
) -> LedgerDamaged:
    return LedgerDamaged(f"{path}: {topic}/{partition} ends at {position}, not at {channel.end}")


def _prepare(path: Path, partitions: int | None) -> Metadata:
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
    (path.parent / FOLDER).mkdir(mode=0o700, exist_ok=True)
    remove_unfinished(path.parent / FOLDER)
    with (
        contextlib.closing(FairLock(path.parent)) as lock,
        lock,
        contextlib.closing(connect(path)) as database,
    ):
        check_version(database, path)
        check_integrity(database, path)
        found: dict[str, str] = dict(database.execute("SELECT name, value FROM ledger").fetchall())
        numbers = topic_numbers(database)
    count = int(found["partitions"])
    firsts = {
        name: [(number << 10 | partition) * POSITIONS_MAX for partition in range(count)]
        for name, number in numbers.items()
    }
    names = {first: (name, part) for name, at in firsts.items() for part, first in enumerate(at)}
    return Metadata(path, found["id"], count, firsts, names)
