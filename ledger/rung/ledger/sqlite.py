"""The ledger as one SQLite file, for all processes of one machine.

`ledger.db` lies in a folder of its own, beside the locks of the `turnstile` and the sockets of
the `doorbell`. One thread writes (`writer`), a few read (`reader`); the event loop only queues
and is told. Several processes may have the same ledger open.

Write-ahead log with `synchronous=FULL`: what `append` returned has been synced to the disk.
"""

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rung.events import TOPICS, EventTooLarge, partition_of, topic
from rung.events.errors import LedgerDamaged, LedgerError, LedgerMissing, LedgerUnavailable
from rung.ledger.doorbell import Ringer, sweep
from rung.ledger.failure import explain
from rung.ledger.port import Draft, Record, check_trim
from rung.ledger.reader import Reader, read_end, read_records, read_start, read_trimmed
from rung.ledger.schema import (
    PARTITIONS_MAX,
    POSITIONS_MAX,
    check_version,
    connect,
    create,
    topic_numbers,
)
from rung.ledger.turnstile import Turnstile
from rung.ledger.watcher import Watcher
from rung.ledger.wholeness import check_size, check_whole
from rung.ledger.writer import Outcome, Retention, Row, Statement, Write, Writer

FILE: Final = "ledger.db"
RETENTION: Final = {topic.HEARTBEATS: Retention(keep=1000, every=250)}
"""Topics of which only each partition's newest records are kept."""
VALUE_BYTES_MAX: Final = 64 << 20
_BATCH: Final = 1000
_DOORBELLS: Final = "doorbells"
_ANNOUNCE: Final = "UPDATE ledger SET value = value + 1 WHERE name = 'doorbells'"


_TRIM: Final = """
INSERT INTO ledger VALUES (?, ?) ON CONFLICT (name) DO UPDATE
SET value = max(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER))
"""
_TRIM_RECORDS: Final = 64
_DELETE: Final = "DELETE FROM records WHERE id >= ? AND id < ?"
_OLDEST: Final = "SELECT min(id) FROM records WHERE id >= ? AND id < ?"


class _About(NamedTuple):
    path: Path
    id: str
    partitions: int
    firsts: dict[str, list[int]]
    """The first record id of each partition of each topic."""
    names: dict[int, tuple[str, int]]
    """The topic and the partition of each first record id."""


class SqliteLedger:
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

    def __init__(self, about: _About) -> None:
        self._about = about
        self._path = path = about.path
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
            retention={
                first: retention
                for name, retention in RETENTION.items()
                for first in about.firsts[name]
            },
            deliver=self._deliver,
        )

    @property
    def id(self) -> str:
        """The ledger's own name, drawn when it was created."""
        return self._about.id

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return len(self._firsts(topic))

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append in order, all or none of them, and return their positions."""
        rows: list[Row] = []
        size = 0
        partitions = self._about.partitions
        for name, key, value in drafts:
            if len(value) > VALUE_BYTES_MAX:
                raise EventTooLarge(
                    f"an event of {len(value)} bytes for {name} (key {key!r}) is larger than "
                    f"the ledger takes ({VALUE_BYTES_MAX} bytes)"
                )
            rows.append((self._firsts(name)[partition_of(key, partitions)], key, value))
            size += len(value)
        return await self._write(rows, size, None) if rows else []

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; fewer where they are big."""
        stream = (topic, partition, self._first(topic, partition))
        read = functools.partial(read_records, stream=stream, position=position, limit=limit)
        return await self._reader.run(functools.partial(read, trimmed=topic in RETENTION))

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        first = self._first(topic, partition)
        return await self._reader.run(functools.partial(read_start, first=first))

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        first = self._first(topic, partition)
        return await self._reader.run(functools.partial(read_end, first=first))

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position; their space is used again.

        That they are removed is on disk first; then they are deleted in transactions of
        some milliseconds each, between which others write. What a crash leaves of them the next
        trim deletes.
        """
        first = self._first(topic, partition)
        check_trim(topic, partition, position, await self.end(topic, partition))
        await self._write((), 0, (_TRIM, (f"trimmed/{first}", str(position))))
        oldest, end = await self._reader.run(functools.partial(_removed, first=first))
        while oldest < end:
            until = min(oldest + _TRIM_RECORDS, end)
            await self._write((), 0, (_DELETE, (first + oldest, first + until)))
            oldest = until

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended."""
        channel = await self._watcher.channel(self._first(topic, partition))
        await self.read(topic, partition, position, 1)
        while True:
            await channel.wait(position)
            records = channel.recent(position, _BATCH)
            if not records:
                records = await self.read(topic, partition, position, _BATCH)
            if not records:
                raise LedgerDamaged(
                    f"{self._path}: {topic}/{partition} ends at {position}, not at {channel.end}"
                )
            position = records[-1].position + 1
            yield records

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the position a consumer committed last, 0 if it never did."""
        found: int | None = await self._one(
            "SELECT position FROM consumers WHERE consumer = ? AND topic = ? AND partition = ?",
            (consumer, topic, partition),
        )
        return found or 0

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Remember where a consumer goes on after a restart."""
        self._first(topic, partition)
        statement = "REPLACE INTO consumers VALUES (?, ?, ?, ?)"
        await self._write((), 0, (statement, (consumer, topic, partition, position)))

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot saved under the name, None if there is none."""
        query = "SELECT value FROM snapshots WHERE name = ? AND partition = ?"
        found: bytes | None = await self._one(query, (name, partition))
        return found

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Replace the snapshot of that name."""
        statement = "REPLACE INTO snapshots VALUES (?, ?, ?)"
        await self._write((), len(value), (statement, (name, partition, value)))

    async def close(self) -> None:
        """Finish pending appends and let go of the ledger; followers get LedgerUnavailable."""
        if not self._closed:
            self._closed = True
            self._submit()
            await self._watcher.close(self._refusal())
            await self._reader.close()
            self._writer.finish()  # last, so that its connection folds the write-ahead log in
        await asyncio.shield(self._gone)

    def _firsts(self, topic: str) -> list[int]:
        try:
            return self._about.firsts[topic]
        except KeyError:
            raise LedgerError(
                f"there is no topic {topic!r}; there are {', '.join(TOPICS)}"
            ) from None

    def _first(self, topic: str, partition: int) -> int:
        firsts = self._firsts(topic)
        if not 0 <= partition < len(firsts):
            raise LedgerError(
                f"topic {topic!r} has no partition {partition}; it has 0 to {len(firsts) - 1}"
            )
        return firsts[partition]

    async def _one(self, query: str, parameters: tuple[str | int, ...]) -> Any:
        row: tuple[Any] | None = await self._reader.run(
            lambda database: database.execute(query, parameters).fetchone()
        )
        return row[0] if row else None

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


def _prepare(path: Path, partitions: int | None) -> _About:
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
    return _About(path, found["id"], count, firsts, names)


def _removed(database: sqlite3.Connection, first: int) -> tuple[int, int]:
    """Return the positions from which and up to which a stream's records are to be deleted."""
    end = read_trimmed(database, first)
    found: tuple[int | None] = database.execute(_OLDEST, (first, first + end)).fetchone()
    return end if found[0] is None else found[0] - first, end
