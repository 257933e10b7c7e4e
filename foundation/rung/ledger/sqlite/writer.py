"""The one thread that writes to a ledger's file: group commit.

Everything that waits when a transaction begins goes into it, so that a hundred writers share
one sync of the disk. Statements are few and long (one `INSERT` for up to 512 records), because
Python's sqlite3 gives up the interpreter lock at every step: beside a busy event loop, a
thousand single inserts would take seconds while they hold the ledger's lock.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rung.events.errors import LedgerError
from rung.ledger.sqlite.errors import explain
from rung.ledger.sqlite.fair_lock import Turnstile
from rung.ledger.sqlite.notify import Ringer
from rung.ledger.sqlite.schema import POSITIONS_MAX, TRIMMED, connect

_GROUP_RECORDS: Final = 10_000
_GROUP_BYTES: Final = 32 << 20
"""A transaction takes no further append once it holds as much as this."""
_CHUNKS: Final = tuple(1 << power for power in range(9, -1, -1))
_INSERTS: Final = {
    rows: f"INSERT INTO records VALUES {','.join(['(?,?,?)'] * rows)}"  # noqa: S608 - no input
    for rows in _CHUNKS
}
_LAST: Final = "SELECT max(id) FROM records WHERE id >= ? AND id < ?"
_TRIM: Final = "DELETE FROM records WHERE id >= ? AND id < ?"

Row = tuple[int, str, bytes]
"""A draft ready to be written: the first id of its stream, its key, its value."""
Statement = tuple[str, tuple[str | int | bytes, ...]]


class Write(NamedTuple):
    """What one caller wants written in one piece; its positions go to `done`."""

    rows: Sequence[Row]
    size: int
    statement: Statement | None
    done: asyncio.Future[list[int]]


class Outcome(NamedTuple):
    """What became of a group of writes."""

    writes: list[Write]
    positions: list[list[int]]
    failure: LedgerError | None


class Retention(NamedTuple):
    """How many of a stream's newest records are kept, and after how many more it is trimmed."""

    keep: int
    every: int


class Inserter:
    """Gives rows their positions and inserts them, within a transaction of one connection."""

    def __init__(self, database: sqlite3.Connection, retention: Mapping[int, Retention]) -> None:
        """Insert through a connection.

        Args:
            database: may write.
            retention: by the first id of the stream, where not all is kept.
        """
        self._database = database
        self._retention = retention
        self._ends: dict[int, int] = {}
        self._kept_from: dict[int, int] = {}

    def forget(self) -> None:
        """Forget where streams end: another connection wrote, or a transaction failed."""
        self._ends.clear()

    def place(self, rows: Sequence[Row], values: list[int | str | bytes]) -> list[int]:
        """Give each row its position, and add its id, key and value to the values."""
        ends = self._ends
        positions: list[int] = []
        for first, key, value in rows:
            end = ends[first] if first in ends else self._last(first)
            ends[first] = end + 1
            values += (first + end, key, value)
            positions.append(end)
        return positions

    def _last(self, first: int) -> int:
        found: tuple[int | None] = self._database.execute(
            _LAST, (first, first + POSITIONS_MAX)
        ).fetchone()
        if found[0] is not None:
            return found[0] - first + 1
        trimmed = self._database.execute(TRIMMED, (f"{first}",)).fetchone()
        return 0 if trimmed is None else int(trimmed[0])

    def insert(self, values: list[int | str | bytes]) -> None:
        """Insert rows, given as ids, keys and values; remove what is no longer kept."""
        offset = 0
        for rows in _CHUNKS:
            while len(values) - offset >= 3 * rows:
                self._database.execute(_INSERTS[rows], values[offset : offset + 3 * rows])
                offset += 3 * rows
        for first, (keep, every) in self._retention.items():
            end = self._ends.get(first, 0)
            if end - self._kept_from.get(first, 0) > keep + every:
                self._database.execute(_TRIM, (first, first + end - keep))
                self._kept_from[first] = end - keep


class Writer:
    """Appends to the file; `submit` and `finish` are called from the event loop's thread."""

    def __init__(
        self,
        path: Path,
        *,
        ringer: Ringer,
        retention: dict[int, Retention],
        deliver: Callable[[Outcome | None], None],
    ) -> None:
        """Open the file for writing.

        Args:
            path: of the database.
            ringer: tells other processes of what was committed.
            retention: by the first id of the stream, where not all is kept.
            deliver: takes, in the writer's thread, what became of each group, and None at the end.
        """
        self._path = path
        self._ringer = ringer
        self._retention = retention
        self._deliver = deliver
        self._database = connect(path)
        self._turnstile = Turnstile(path.parent)
        self._mark: int | None = None
        self._inserter = Inserter(self._database, retention)
        self._queue: queue.SimpleQueue[list[Write] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ledger-writer", daemon=True).start()

    def submit(self, writes: list[Write]) -> None:
        """Queue writes; what became of them is delivered in the same order."""
        self._queue.put(writes)

    def finish(self) -> None:
        """Write what is queued, then let go of the file."""
        self._queue.put(None)

    def _run(self) -> None:
        waiting: list[Write] = []
        try:
            self._work(waiting)
        except BaseException as error:
            failure = LedgerError(f"the thread that writes to {self._path} died: {error!r}")
            self._deliver(Outcome(waiting, [], failure))
            raise
        finally:
            self._deliver(None)

    def _work(self, waiting: list[Write]) -> None:
        finishing = False
        while waiting or not finishing:
            if not waiting:
                finishing = self._take(self._queue.get(), waiting)
            while not finishing and not self._queue.empty():
                finishing = self._take(self._queue.get(), waiting)
            if waiting:
                size = _group_size(waiting)
                outcome = self._commit(waiting[:size])
                del waiting[:size]
                self._deliver(outcome)
        with self._turnstile:
            self._database.close()
        self._turnstile.close()
        self._ringer.close()

    @staticmethod
    def _take(writes: list[Write] | None, waiting: list[Write]) -> bool:
        waiting.extend(writes or ())
        return writes is None

    def _commit(self, group: list[Write]) -> Outcome:
        try:
            with self._turnstile:
                positions = self._transact(group)
        except (sqlite3.Error, OSError) as error:
            self._recover()
            return Outcome(group, [], explain(error, self._path))
        self._ringer.ring()
        return Outcome(group, positions, None)

    def _transact(self, group: list[Write]) -> list[list[int]]:
        execute = self._database.execute
        execute("BEGIN IMMEDIATE")
        (mark,) = execute("SELECT data_version FROM pragma_data_version").fetchone()
        if mark != self._mark or self._ringer.unheard:  # another process wrote meanwhile
            self._inserter.forget()
            self._ringer.look()
            self._mark = mark
        values: list[int | str | bytes] = []
        positions = [self._inserter.place(write.rows, values) for write in group]
        self._inserter.insert(values)
        for write in group:
            if write.statement:
                execute(*write.statement)
        execute("COMMIT")
        return positions

    def _recover(self) -> None:
        """Undo what a failed transaction left behind, in the file and in memory."""
        self._mark = None
        self._inserter.forget()
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error:
            self._database.close()
            self._database = connect(self._path)
            self._inserter = Inserter(self._database, self._retention)


def _group_size(waiting: list[Write]) -> int:
    """Return how many of the waiting writes, at least one, go into the next transaction."""
    records = size = 0
    for count, write in enumerate(waiting):
        records += len(write.rows)
        size += write.size
        if count and (records > _GROUP_RECORDS or size > _GROUP_BYTES):
            return count
    return len(waiting)
