"""The one thread that writes to a ledger's file.

Told to *begin*, it takes the file's lock, opens a transaction and says where the streams end,
unless nothing was written since the last one but by itself; until the transaction ends nobody else
writes, so positions are certain. Told to *commit*, it writes what it was given and syncs the disk.

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
from rung.ledger.sqlite.fair_lock import Turnstile
from rung.ledger.sqlite.notify import Ringer
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
_TRIM: Final = "DELETE FROM records WHERE id >= ? AND id < ?"
_LOOK_S: Final = 1.0
"""How often to look whether the event loop is still there, with a transaction open."""

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
    """What a transaction writes."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.values: list[int | str | bytes] = []
        """The id, key and value of each record."""
        self.statements: list[Statement] = []
        """What is executed behind them."""

    def apply(self, database: sqlite3.Connection) -> None:
        """Write it, within a transaction."""
        offset = 0
        for rows in _CHUNKS:
            while len(self.values) - offset >= 3 * rows:
                values = self.values[offset : offset + 3 * rows]
                database.execute(_INSERTS[rows], values)
                offset += 3 * rows
        for statement in self.statements:
            database.execute(*statement)


class Ends:
    """Where streams end, for as long as nobody else writes: gives rows their positions."""

    def __init__(self, retention: Mapping[int, Retention]) -> None:
        """Begin with empty streams.

        Args:
            retention: by the first id of the stream, where not all is kept.
        """
        self._retention = retention
        self._ends: dict[int, int] = {}
        self._kept_from: dict[int, int] = {}

    def learn(self, ends: dict[int, int]) -> None:
        """Take where streams end, by their first ids; others are empty."""
        self._ends = ends

    def place(self, rows: Sequence[Row], changes: Changes) -> list[int]:
        """Add rows to what is written; return their positions."""
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
        """Remove what is no longer kept of a stream."""
        keep, every = self._retention[first]
        if end - self._kept_from.get(first, 0) > keep + every:
            changes.statements.append((_TRIM, (first, first + end - keep)))
            self._kept_from[first] = end - keep


def read_ends(database: sqlite3.Connection) -> dict[int, int]:
    """Return where streams end that ever had a record, by their first ids."""
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
    """Where streams end, by their first ids; None: as this writer left them."""


class Committed(NamedTuple):
    """It is durable."""


Result = Began | Committed | LedgerError | None
"""What became of a command; None: the thread has ended."""


class _Begin:
    """The command to open a transaction."""


class Writer:
    """Writes to the file, in a thread of its own; each command has one result."""

    def __init__(
        self,
        path: Path,
        *,
        ringer: Ringer,
        deliver: Callable[[Result], None],
        alive: Callable[[], bool],
    ) -> None:
        """Open the file for writing.

        Args:
            path: of the database.
            ringer: tells other processes of what was committed.
            deliver: takes results, in the writer's thread.
            alive: whether the one who gives the commands is still there.
        """
        self._path = path
        self._ringer = ringer
        self._deliver = deliver
        self._alive = alive
        self._database = connect(path)
        self._turnstile = Turnstile(path.parent)
        self._holding = contextlib.ExitStack()
        self._open = False
        self._mark: int | None = None
        self._commands: queue.SimpleQueue[_Begin | Changes | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ledger-writer", daemon=True).start()

    def begin(self) -> None:
        """Open a transaction; `Began` follows, or an error."""
        self._commands.put(_Begin())

    def commit(self, changes: Changes) -> None:
        """Write and end the transaction; `Committed` follows, or an error: then nothing was."""
        self._commands.put(changes)

    def finish(self) -> None:
        """Let go of the file."""
        self._commands.put(None)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            failure = LedgerError(f"the thread that writes to {self._path} died: {error!r}")
            self._deliver(failure)
            raise
        finally:
            self._holding.close()
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
            self._holding.enter_context(self._turnstile)
        self._database.close()
        self._holding.close()
        self._turnstile.close()
        self._ringer.close()

    def _next(self) -> _Begin | Changes | None:
        while True:
            try:
                return self._commands.get(timeout=_LOOK_S if self._open else None)
            except queue.Empty:
                if not self._alive():
                    return None  # nothing of what is open was promised to anybody

    def _begin(self) -> dict[int, int] | None:
        self._holding.enter_context(self._turnstile)
        execute = self._database.execute
        execute("BEGIN IMMEDIATE")
        self._open = True
        (mark,) = execute("SELECT data_version FROM pragma_data_version").fetchone()
        if mark == self._mark and not self._ringer.unheard:
            return None
        self._ringer.look()
        ends = read_ends(self._database)
        self._mark = mark  # another process wrote meanwhile, or this one failed to
        return ends

    def _commit(self, changes: Changes) -> None:
        changes.apply(self._database)
        self._database.execute("COMMIT")
        self._open = False
        self._holding.close()
        self._ringer.ring()

    def _recover(self) -> None:
        """Undo what a failed transaction left behind."""
        self._mark = None
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error:
            self._database.close()
            self._database = connect(self._path)
        finally:
            self._open = False
            self._holding.close()
