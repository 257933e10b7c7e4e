"""Reads a ledger's file in its own threads, without delaying the writer.

A batch of records is fetched as one long row. Python's sqlite3 releases the interpreter lock at
every row and, beside a busy event loop, waits five milliseconds for it: a thousand rows would take
seconds.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise, repeat
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rung.events.errors import LedgerDamaged, LedgerTrimmed, LedgerUnavailable
from rung.ledger.port import Record
from rung.ledger.sqlite.errors import explain
from rung.ledger.sqlite.schema import POSITIONS_MAX, connect

_THREADS: Final = 3
_CACHE_KIB: Final = 8192
_BATCH_BYTES: Final = 8 << 20
"""A batch ends at the record that reaches this, which bounds memory."""

_EXTENT: Final = """
SELECT count(*), min(id), max(id), sum(size)
FROM (SELECT id, length(value) AS size FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)
"""
_SIZES: Final = """
SELECT json_group_array(length(value))
FROM (SELECT value FROM records WHERE id >= ? AND id <= ? ORDER BY id)
"""
_BATCH: Final = """
SELECT json_group_array(key), json_group_array(length(value)), group_concat(value, '')
FROM (SELECT key, value FROM records WHERE id >= ? AND id <= ? ORDER BY id)
"""
_ROOTED_MAX: Final = 200
_PASSED_MAX: Final = 50_000
"""Records that one query scans."""
_ROOTED: Final = """
SELECT json_group_array(id), json_group_array(key), json_group_array(length(value)),
    group_concat(value, '')
FROM (
    SELECT id, key, value FROM records
    WHERE id >= ? AND id < ? AND (key = ? OR key >= ? AND key < ?) ORDER BY id LIMIT ?
)
"""
_EXTENTS: Final = f"""
SELECT json_group_array(json_array(
    (SELECT max(id) FROM records
        WHERE id >= firsts.value AND id < firsts.value + {POSITIONS_MAX}),
    (SELECT CAST(trims.value AS INTEGER) FROM ledger AS trims
        WHERE trims.name = 'trimmed/' || firsts.value)
)) FROM json_each(?) AS firsts
"""  # noqa: S608 - no input
_TRIMMED: Final = "SELECT value FROM ledger WHERE name = 'trimmed/' || ?"
_FIRST: Final = "SELECT min(id) FROM records WHERE id >= ? AND id < ?"
_LAST: Final = "SELECT max(id) FROM records WHERE id >= ? AND id < ?"

_extents: Final = msgspec.json.Decoder(list[tuple[int | None, int | None]])
_numbers: Final = msgspec.json.Decoder(list[int])
_texts: Final = msgspec.json.Decoder(list[str])

T = TypeVar("T")


class Reader:
    """A few read-only connections to one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._executor = ThreadPoolExecutor(_THREADS, "ledger-reader")
        self._own = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def run(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in a thread.

        Raises:
            LedgerError: it failed.
        """
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._executor, self._query, query)
        except RuntimeError as error:
            raise LedgerUnavailable(f"the ledger {self._path} is closed") from error
        return await running

    async def close(self) -> None:
        """Finish pending reads and close the connections."""
        await asyncio.to_thread(self._executor.shutdown)
        for connection in self._connections:
            connection.close()

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = connect(self._path, read_only=True)
                connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                self._own.connection = connection
                self._connections.append(connection)
            return query(connection)
        except (sqlite3.Error, OSError) as error:
            raise explain(error, self._path) from error


def read_end(database: sqlite3.Connection, first: int) -> int:
    """Return the position that the stream's next record will get."""
    found: tuple[int | None] = database.execute(_LAST, (first, first + POSITIONS_MAX)).fetchone()
    return read_trimmed(database, first) if found[0] is None else found[0] - first + 1


def read_start(database: sqlite3.Connection, first: int) -> int:
    """Return the first position of the stream that exists."""
    trimmed = read_trimmed(database, first)
    found: tuple[int | None] = database.execute(_FIRST, (first, first + POSITIONS_MAX)).fetchone()
    return trimmed if found[0] is None else max(trimmed, found[0] - first)


def read_trimmed(database: sqlite3.Connection, first: int) -> int:
    """Return the position up to which the stream was trimmed, 0 if it never was.

    The records before it are being deleted, or are deleted.
    """
    found: tuple[bytes | str] | None = database.execute(_TRIMMED, (f"{first}",)).fetchone()
    return 0 if found is None else int(found[0])


def read_removed(database: sqlite3.Connection, first: int) -> tuple[int, int]:
    """Return the range of trimmed positions of a stream whose records were not deleted yet."""
    end = read_trimmed(database, first)
    found: tuple[int | None] = database.execute(_FIRST, (first, first + end)).fetchone()
    return end if found[0] is None else found[0] - first, end


def read_extents(database: sqlite3.Connection, firsts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the trimmed position and the end of each stream, by one query."""
    (found,) = database.execute(_EXTENTS, (msgspec.json.encode(firsts).decode(),)).fetchone()
    return [
        (trimmed or 0, (trimmed or 0) if last is None else last - first + 1)
        for first, (last, trimmed) in zip(firsts, _extents.decode(found), strict=True)
    ]


def read_records(
    database: sqlite3.Connection,
    stream: tuple[str, int, int],
    position: int,
    limit: int,
    *,
    trimmed: bool,
) -> list[Record]:
    """Return records of a stream, given as topic, partition and first id.

    Args:
        database: a read-only connection.
        stream: which one.
        position: where to begin.
        limit: how many at most.
        trimmed: whether old records are removed; reading then begins at the oldest that is left.

    Raises:
        LedgerTrimmed: the position was removed.
        LedgerDamaged: records are missing, or the position lies beyond the end.
    """
    topic, partition, first = stream
    while True:
        extent = database.execute(_EXTENT, (first + position, first + POSITIONS_MAX, limit))
        count, oldest, newest, size = extent.fetchone()
        gone = oldest != first + position and not trimmed
        if gone and position < (start := read_trimmed(database, first)):
            raise LedgerTrimmed(
                f"position {position} of {topic}/{partition} was removed: {start} is the first",
                first=start,
            )
        if not count:
            if position > (end := read_end(database, first)):
                raise LedgerDamaged(
                    f"{topic}/{partition} ends at {end}, before position {position}: records "
                    "were lost, perhaps as the folder was restored from a backup of an earlier "
                    "day. Restore the newest one, and what else was taken with it"
                )
            return []
        if newest - oldest != count - 1 or gone:
            raise LedgerDamaged(
                f"records are missing from {topic}/{partition} after position "
                f"{position - 1}: the ledger is damaged. Restore it from a backup"
            )
        if size > _BATCH_BYTES:
            count = _within(database, oldest, newest)
        batch = database.execute(_BATCH, (oldest, oldest + count - 1))
        keys, sizes, joined = batch.fetchone()
        ends = list(accumulate(_numbers.decode(sizes)))
        if len(ends) == count:
            break
        # Trimmed between the queries: read again.
    start = oldest - first
    return _records(topic, partition, range(start, start + count), keys, ends, joined)


def read_rooted(
    database: sqlite3.Connection, stream: tuple[str, int, int], begin: int, end: int, root: str
) -> tuple[list[Record], int]:
    """Return records of a stream whose keys are a root, or begin with it and a dot.

    Args:
        database: a read-only connection.
        stream: which one, as topic, partition and first id.
        begin: where to begin.
        end: behind the last one.
        root: of the keys.

    Returns:
        Some records, and the position up to which these are all.
    """
    topic, partition, first = stream
    end = min(end, begin + _PASSED_MAX)
    keys_of = (root, f"{root}.", f"{root}/")  # "/" comes next to "."
    ids, keys, sizes, joined = database.execute(
        _ROOTED, (first + begin, first + end, *keys_of, _ROOTED_MAX)
    ).fetchone()
    positions = [found - first for found in _numbers.decode(ids)]
    ends = list(accumulate(_numbers.decode(sizes)))
    records = _records(topic, partition, positions, keys, ends, joined)
    return records, positions[-1] + 1 if len(positions) == _ROOTED_MAX else end


def _records(  # noqa: PLR0913, PLR0917 - the columns of a batch
    topic: str,
    partition: int,
    positions: Sequence[int],
    keys: bytes,
    ends: Sequence[int],
    joined: bytes | None,
) -> list[Record]:
    """Return records of a batch that was fetched as one row."""
    values = joined or b""  # what joins to nothing is NULL
    return list(
        map(
            Record,
            repeat(topic),
            repeat(partition),
            positions,
            _texts.decode(keys),
            [values[begin:end] for begin, end in pairwise((0, *ends))],
        )
    )


def _within(database: sqlite3.Connection, oldest: int, newest: int) -> int:
    """Return how many records fill a batch."""
    (sizes,) = database.execute(_SIZES, (oldest, newest)).fetchone()
    ends = enumerate(accumulate(_numbers.decode(sizes)), 1)
    return next((count for count, end in ends if end >= _BATCH_BYTES), newest - oldest + 1)
