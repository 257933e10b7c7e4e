"""The one thread that writes to a ledger's file.

The command *begin* takes the file's lock, opens a transaction and returns the ends of the streams,
unless only this thread has written since the last one. No other process writes until the
transaction ends, so positions are certain. The command *commit* writes changes and syncs the disk.

Statements are few and long (one `INSERT` for up to 512 records), because Python's sqlite3 gives up
the interpreter lock at every step: beside a busy event loop, a thousand single inserts would take
seconds while they hold the ledger's lock.
"""

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rung.events.errors import LedgerError
from rung.ledger.sqlite.errors import explain
from rung.ledger.sqlite.fair_lock import FairLock
from rung.ledger.sqlite.notify import Notifier
from rung.ledger.sqlite.schema import POSITIONS_MAX, connect

_CHUNKS: Final = tuple(1 << power for power in range(9, -1, -1))
_INSERTS: Final = {
    rows: f"INSERT INTO records VALUES {','.join(['(?,?,?)'] * rows)}"  # noqa: S608 - no input
    for rows in _CHUNKS
}
_LAST: Final = """
WITH RECURSIVE streams (last) AS (
    SELECT max(id) FROM records
    UNION ALL
    SELECT (SELECT max(id) FROM records WHERE id < streams.last >> 40 << 40)
    FROM streams WHERE streams.last IS NOT NULL
)
SELECT json_group_array(last) FROM streams WHERE last IS NOT NULL
"""
"""The last record of each stream that has one, found by as many steps."""
_TRIMMED: Final = """
SELECT json_group_object(substr(name, 9), CAST(value AS INTEGER))
FROM ledger WHERE name >= 'trimmed/' AND name < 'trimmed0'
"""
DELETE: Final = "DELETE FROM records WHERE id >= ? AND id < ?"
_CHECK_S: Final = 1.0
"""How often to check, with a transaction open, that the event loop still runs."""

_numbers: Final = msgspec.json.Decoder(list[int])
_trims: Final = msgspec.json.Decoder(dict[str, int])

Row = tuple[int, str, bytes]
"""A draft ready to be written: the first id of its stream, its key, its value."""
Statement = tuple[str, tuple[str | int | bytes, ...]]


class Retention(NamedTuple):
    """How many of a stream's newest records are kept, and after how many more it is trimmed."""

    keep: int
    every: int


class Changes:
    """The records and statements of a transaction."""

    def __init__(self) -> None:
        """Begin empty."""
        self.values: list[int | str | bytes] = []
        """The id, key and value of each record."""
        self.statements: list[Statement] = []
        """Executed after the inserts."""

    def apply(self, database: sqlite3.Connection) -> None:
        """Execute them, within a transaction."""
        offset = 0
        for rows in _CHUNKS:
            while len(self.values) - offset >= 3 * rows:
                values = self.values[offset : offset + 3 * rows]
                database.execute(_INSERTS[rows], values)
                offset += 3 * rows
        for statement in self.statements:
            database.execute(*statement)


class Ends:
    """The ends of streams while no other process writes: assigns positions to rows."""

    def __init__(self, retention: Mapping[int, Retention]) -> None:
        """Begin with empty streams.

        Args:
            retention: of streams that are not kept for ever, by their first ids.
        """
        self._retention = retention
        self._ends: dict[int, int] = {}
        self._kept_from: dict[int, int] = {}

    def reset(self, ends: dict[int, int]) -> None:
        """Replace the ends, by first ids; other streams are empty."""
        self._ends = ends

    def place(self, rows: Sequence[Row], changes: Changes) -> list[int]:
        """Add rows to the changes; return their positions."""
        ends, values = self._ends, changes.values
        positions: list[int] = []
        for first, key, value in rows:
            end = ends.get(first, 0)
            ends[first] = end + 1
            values += (first + end, key, value)
            positions.append(end)
            if first in self._retention:
                self._trim(first, end + 1, changes)
        return positions

    def _trim(self, first: int, end: int, changes: Changes) -> None:
        """Delete the records of a stream that are older than its retention."""
        keep, every = self._retention[first]
        if end - self._kept_from.get(first, 0) > keep + every:
            changes.statements.append((DELETE, (first, first + end - keep)))
            self._kept_from[first] = end - keep


def read_ends(database: sqlite3.Connection) -> dict[int, int]:
    """Return the ends of all streams that ever had a record, by their first ids."""
    (trimmed,) = database.execute(_TRIMMED).fetchone()
    (last,) = database.execute(_LAST).fetchone()
    ends = {int(first): position for first, position in _trims.decode(trimmed).items()}
    for newest in _numbers.decode(last):
        first = newest - newest % POSITIONS_MAX
        ends[first] = newest - first + 1
    return ends


class Began(NamedTuple):
    """A transaction is open."""

    ends: dict[int, int] | None
    """The ends of streams, by their first ids; None: as this writer left them."""


class Committed(NamedTuple):
    """The transaction is durable."""


Result = Began | Committed | LedgerError | None
"""The result of a command; None: the thread has ended."""


class _Begin:
    """The command to open a transaction."""


class Writer:
    """Writes to the file in its own thread; each command has one result."""

    def __init__(
        self,
        path: Path,
        *,
        notifier: Notifier,
        deliver: Callable[[Result], None],
        alive: Callable[[], bool],
    ) -> None:
        """Open the file for writing.

        Args:
            path: of the database.
            notifier: wakes the followers of other processes after a commit.
            deliver: called with each result, in the writer's thread.
            alive: whether the event loop that sends commands still runs.
        """
        self._path = path
        self._notifier = notifier
        self._deliver = deliver
        self._alive = alive
        self._database = connect(path)
        self._lock = FairLock(path.parent)
        self._held = contextlib.ExitStack()
        self._open = False
        self._data_version: int | None = None
        self._commands: queue.SimpleQueue[_Begin | Changes | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ledger-writer", daemon=True).start()

    def begin(self) -> None:
        """Open a transaction; `Began` follows, or an error."""
        self._commands.put(_Begin())

    def commit(self, changes: Changes) -> None:
        """Write and commit; `Committed` follows, or an error: then nothing was written."""
        self._commands.put(changes)

    def finish(self) -> None:
        """Close the file and end the thread."""
        self._commands.put(None)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            failure = LedgerError(f"the thread that writes to {self._path} died: {error!r}")
            self._deliver(failure)
            raise
        finally:
            self._held.close()
            self._deliver(None)

    def _work(self) -> None:
        while (command := self._next()) is not None:
            result: Result
            try:
                if isinstance(command, Changes):
                    self._commit(command)
                    result = Committed()
                else:
                    result = Began(self._begin())
            except (sqlite3.Error, OSError) as error:
                self._recover()
                result = explain(error, self._path)
            self._deliver(result)
        if not self._open:
            self._held.enter_context(self._lock)
        self._database.close()
        self._held.close()
        self._lock.close()
        self._notifier.close()

    def _next(self) -> _Begin | Changes | None:
        while True:
            try:
                return self._commands.get(timeout=_CHECK_S if self._open else None)
            except queue.Empty:
                if not self._alive():
                    return None  # no caller is left for the open transaction

    def _begin(self) -> dict[int, int] | None:
        self._held.enter_context(self._lock)
        execute = self._database.execute
        execute("BEGIN IMMEDIATE")
        self._open = True
        (data_version,) = execute("SELECT data_version FROM pragma_data_version").fetchone()
        if data_version == self._data_version and not self._notifier.incomplete:
            return None
        self._notifier.connect()
        ends = read_ends(self._database)
        self._data_version = data_version  # another process wrote, or this one failed
        return ends

    def _commit(self, changes: Changes) -> None:
        changes.apply(self._database)
        self._database.execute("COMMIT")
        self._open = False
        self._held.close()
        self._notifier.notify()

    def _recover(self) -> None:
        """Roll back a failed transaction."""
        self._data_version = None
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error:
            self._database.close()
            self._database = connect(self._path)
        finally:
            self._open = False
            self._held.close()
