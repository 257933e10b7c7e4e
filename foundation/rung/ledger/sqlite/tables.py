"""Reads and writes of a ledger's SQLite file; subclasses run the statements."""

import functools
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from rung.events import TOPICS, EventTooLarge, partition_of, topic
from rung.events.errors import LedgerError
from rung.ledger.port import Draft, Record, check_trim
from rung.ledger.sqlite.reader import (
    read_end,
    read_records,
    read_removed,
    read_rooted,
    read_start,
)
from rung.ledger.sqlite.writer import DELETE, Retention, Row, Statement

RETENTION: Final = {topic.HEARTBEATS: Retention(keep=1000, every=250)}
"""Topics whose partitions keep only their newest records."""
VALUE_BYTES_MAX: Final = 64 << 20

_TRIM: Final = """
INSERT INTO ledger VALUES (?, ?) ON CONFLICT (name) DO UPDATE
SET value = max(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER))
"""
_TRIM_RECORDS: Final = 64

T = TypeVar("T")


class Metadata(NamedTuple):
    """The metadata of a ledger's file."""

    path: Path
    id: str
    partitions: int
    firsts: dict[str, list[int]]
    """The first record id of each partition of each topic."""
    names: dict[int, tuple[str, int]]
    """The topic and the partition of each first record id."""


class SqliteTables:
    """Reads and writes the file's tables; subclasses run the statements."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._path = metadata.path

    @property
    def id(self) -> str:
        """The ledger's id, drawn when it was created."""
        return self._metadata.id

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return len(self._firsts(topic))

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append in order, all or none of them, and return their positions."""
        return await self._append(drafts, None) if drafts else []

    async def append_and_commit(
        self, drafts: Sequence[Draft], consumer: str, topic: str, partition: int, position: int
    ) -> list[int]:
        """Append and commit in one transaction."""
        return await self._append(drafts, self._commit_of(consumer, topic, partition, position))

    async def _append(self, drafts: Sequence[Draft], statement: Statement | None) -> list[int]:
        rows: list[Row] = []
        size = 0
        partitions = self._metadata.partitions
        for name, key, value in drafts:
            if len(value) > VALUE_BYTES_MAX:
                raise EventTooLarge(
                    f"an event of {len(value)} bytes for {name} (key {key!r}) is larger than "
                    f"the ledger takes ({VALUE_BYTES_MAX} bytes)"
                )
            rows.append((self._firsts(name)[partition_of(key, partitions)], key, value))
            size += len(value)
        return await self._write(rows, size, statement)

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; fewer where they are big."""
        stream = (topic, partition, self._first(topic, partition))
        read = functools.partial(read_records, stream=stream, position=position, limit=limit)
        return await self._read(functools.partial(read, trimmed=topic in RETENTION))

    async def read_of(
        self, topic: str, partition: int, begin: int, end: int, root: str
    ) -> tuple[list[Record], int]:
        """Return some records with keys of a root; SQLite skips the others."""
        stream = (topic, partition, self._first(topic, partition))
        read = functools.partial(read_rooted, stream=stream, begin=begin, end=end, root=root)
        return await self._read(read)

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        first = self._first(topic, partition)
        return await self._read(functools.partial(read_start, first=first))

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        first = self._first(topic, partition)
        return await self._read(functools.partial(read_end, first=first))

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position; their space is used again.

        First the new start becomes durable; then the records are deleted in transactions of some
        milliseconds each, between which others write. After a crash the next trim deletes the
        rest.
        """
        first = self._first(topic, partition)
        check_trim(topic, partition, position, await self.end(topic, partition))
        await self._write((), 0, (_TRIM, (f"trimmed/{first}", str(position))))
        oldest, end = await self._read(functools.partial(read_removed, first=first))
        while oldest < end:
            until = min(oldest + _TRIM_RECORDS, end)
            await self._write((), 0, (DELETE, (first + oldest, first + until)))
            oldest = until

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the last committed position of a consumer, 0 if there is none."""
        found: int | None = await self._one(
            "SELECT position FROM consumers WHERE consumer = ? AND topic = ? AND partition = ?",
            (consumer, topic, partition),
        )
        return found or 0

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Commit the position at which a consumer resumes."""
        await self._write((), 0, self._commit_of(consumer, topic, partition, position))

    def _commit_of(self, consumer: str, topic: str, partition: int, position: int) -> Statement:
        self._first(topic, partition)
        statement = "REPLACE INTO consumers VALUES (?, ?, ?, ?)"
        return statement, (consumer, topic, partition, position)

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot saved under the name, None if there is none."""
        query = "SELECT value FROM snapshots WHERE name = ? AND partition = ?"
        found: bytes | None = await self._one(query, (name, partition))
        return found

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Replace the snapshot of that name."""
        statement = "REPLACE INTO snapshots VALUES (?, ?, ?)"
        await self._write((), len(value), (statement, (name, partition, value)))

    def _firsts(self, topic: str) -> list[int]:
        try:
            return self._metadata.firsts[topic]
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
        row: tuple[Any] | None = await self._read(
            lambda database: database.execute(query, parameters).fetchone()
        )
        return row[0] if row else None

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on a connection that returns text as bytes."""
        raise NotImplementedError

    async def _write(
        self, rows: Sequence[Row], size: int, statement: Statement | None
    ) -> list[int]:
        """Insert rows, run a statement, and return the rows' positions."""
        raise NotImplementedError


def retention_of(metadata: Metadata) -> dict[int, Retention]:
    """Return the retention of streams, by their first ids."""
    return {
        first: retention
        for name, retention in RETENTION.items()
        for first in metadata.firsts[name]
    }
