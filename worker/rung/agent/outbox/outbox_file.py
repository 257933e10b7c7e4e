"""The outbox's file: SQLite, write-ahead log with `synchronous=FULL`.

A damaged file is renamed, with the time in its name, and a new one is created, with another outbox
id and a higher incarnation, so that the scheduler records the agent's runs as lost and has them
repeated from what the ledger has. Nothing is taken over from the damaged file: if reports in the
middle were missing, later ones would still be believed. The file `spool.damaged` exists until the
database, its write-ahead log and its index are all renamed, so that a process that is killed
meanwhile leaves no write-ahead log beside a database to which it does not belong.

Tables: `fact` holds facts that the ledger does not have, as of the last commit; `mark` the agent's
id, its incarnation, and up to which number facts were removed; `run` the states of runs for the
next session of the agent, and `taken` which of their messages took effect. `commit` is called from
one thread, everything else from another.
"""

import contextlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from rung.events import RungError
from rung.ledger import Draft

SET_ASIDE: Final = "damaged"
"""Part of the names of renamed, damaged files."""
_SUFFIXES: Final = ("-shm", "-wal", "")
"""Suffixes of the database's files."""
_LAYOUT: Final = 1
_SELECT_BYTES_MAX: Final = 4 * 1024**2
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS fact (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS mark (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS run (allocation_id TEXT PRIMARY KEY, state BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS taken (
    stream TEXT PRIMARY KEY, allocation_id TEXT NOT NULL, number INTEGER NOT NULL
);
"""

_log = structlog.get_logger()


class OutboxUnusable(RungError):
    """The outbox's file cannot be opened; the message says what to do."""


class OutboxRefused(OutboxUnusable):
    """The file is of a newer version or of another agent: retries do not help."""


class _Damaged(Exception):
    """The file's content is not what was written."""


class RunSaved(NamedTuple):
    """The state of a run, for the next session of the agent."""

    allocation_id: str
    state: bytes


class RunEnded(NamedTuple):
    """A run is over, and its state is deleted."""

    allocation_id: str


class MessagesTaken(NamedTuple):
    """The messages of a stream up to a number took effect."""

    stream: str
    allocation_id: str
    number: int


class Marked(NamedTuple):
    """A mark of the agent has a value."""

    name: str
    value: str


Change = RunSaved | RunEnded | MessagesTaken | Marked
"""Written in one transaction with facts, and not published."""


class OutboxEntry(NamedTuple):
    """One fact in the outbox."""

    number: int
    draft: Draft


class Marks(NamedTuple):
    """Identity and counters of the outbox."""

    id: str
    agent_id: str
    incarnation: int
    forgotten: int
    """Facts up to this number were removed."""
    last: int
    """The highest number given so far."""


class OutboxFile:
    """Facts and marks on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()
        self._removed = 0

    @property
    def size_bytes(self) -> int:
        """Its size on disk, with the write-ahead log."""
        size = 0
        for path in (self.path, self.path.with_name(self.path.name + "-wal")):
            with contextlib.suppress(OSError):
                size += path.stat().st_size
        return size

    def written_ms(self) -> int:
        """Return the time of the last write, Unix time in milliseconds; 0: never."""
        times = [0]
        for path in (self.path, self.path.with_name(self.path.name + "-wal")):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime_ns // 1_000_000)
        return max(times)

    def open(self, agent_id: str | None, default_agent_id: str) -> Marks:
        """Open the file, or create it for an agent, and return its marks.

        A damaged one is renamed first.

        Raises:
            OutboxRefused: it is of a newer version, or belongs to another agent.
            OutboxUnusable: it cannot be opened now.
        """
        try:
            if self._mark.exists():
                self._set_aside("a process was killed while it renamed a damaged outbox")
            try:
                marks = self._open(agent_id, default_agent_id)
            except (sqlite3.DatabaseError, _Damaged) as error:
                # Operational errors come from the disk, a lock or permissions, not from damage.
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self._set_aside(str(error))
                marks = self._open(agent_id, default_agent_id)
        except (sqlite3.Error, OSError) as error:
            raise OutboxUnusable(
                f"the agent's outbox {self.path} cannot be opened: {error}; "
                "check the disk and the folder's permissions, or move it away, with its -wal and "
                "-shm (reports in it that the ledger does not have are lost then)"
            ) from error
        self._removed = marks.forgotten
        return marks

    @property
    def _mark(self) -> Path:
        return self.path.with_name(f"{self.path.stem}.{SET_ASIDE}")

    def _open(self, agent_id: str | None, default_agent_id: str) -> Marks:
        with contextlib.ExitStack() as undo:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = _connect(self.path)
            undo.callback(self._db.close)
            _check_whole(self._db)
            self._reader = _connect(self.path)
            undo.callback(self._reader.close)
            marks = self._marks(agent_id, default_agent_id)
            undo.pop_all()
        return marks

    def _set_aside(self, why: str) -> None:
        """Rename the database's files; may be interrupted at any point."""
        self._mark.touch()
        at = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        aside = self.path.with_name(f"{self.path.name}.{SET_ASIDE}-{at}")
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).rename(f"{aside}{suffix}")
        self._mark.unlink()
        _log.error(
            "the outbox was damaged and is set aside; unpublished work is repeated",
            reason=why,
            path=str(self.path),
            aside=str(aside),
        )

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
        self._db.close()

    def commit(
        self, batch: Sequence[OutboxEntry], forgotten: int, changes: Sequence[Change] = ()
    ) -> None:
        """Add facts, remove those up to `forgotten`, apply changes; durable when it returns.

        Raises:
            sqlite3.Error: nothing was changed.
        """
        with self._writing, self._db:
            if forgotten > self._removed:
                self._db.execute("DELETE FROM fact WHERE number <= ?", (forgotten,))
                self._db.execute(
                    "UPDATE mark SET value = ? WHERE name = 'forgotten'", (str(forgotten),)
                )
            self._db.executemany(
                "INSERT INTO fact VALUES (?, ?, ?, ?)",
                ((number, *draft) for number, draft in batch),
            )
            for change in changes:
                _apply(self._db, change)
        self._removed = max(self._removed, forgotten)

    def select(self, after: int, last: int, limit: int) -> list[OutboxEntry]:
        """Return facts with numbers above `after` and up to `last`, in order.

        Fewer than `limit` where they are large: the result ends with the fact that reaches some
        MiB.
        """
        rows = self._reader.execute(
            "SELECT number, topic, key, value FROM fact WHERE number > ? AND number <= ? "
            "ORDER BY number LIMIT ?",
            (after, last, limit),
        )
        found: list[OutboxEntry] = []
        size = 0
        for number, topic, key, value in rows:
            found.append(OutboxEntry(number, Draft(topic, key, value)))
            size += len(value)
            if size >= _SELECT_BYTES_MAX:
                break
        rows.close()
        return found

    def runs(self) -> dict[str, bytes]:
        """Return the saved state of each run that is not over."""
        return dict(self._reader.execute("SELECT allocation_id, state FROM run ORDER BY 1"))

    def taken(self) -> dict[str, int]:
        """Return for each stream of these runs the last message that took effect."""
        return dict(self._reader.execute("SELECT stream, number FROM taken"))

    def mark(self, name: str) -> str | None:
        """Return a mark's value, None if it does not exist."""
        row = self._reader.execute("SELECT value FROM mark WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def begin_incarnation(self, above: int = 0) -> int:
        """Begin an incarnation greater than `above`; durable when it returns."""
        with self._writing, self._db:
            (number,) = self._db.execute(
                "UPDATE mark SET value = MAX(CAST(value AS INTEGER), ?) + 1 "
                "WHERE name = 'incarnation' RETURNING CAST(value AS INTEGER)",
                (above,),
            ).fetchone()
        return int(number)

    def _marks(self, agent_id: str | None, default_agent_id: str) -> Marks:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for name, value in (
                ("layout", str(_LAYOUT)),
                ("spool_id", secrets.token_hex(8)),
                ("agent_id", agent_id or default_agent_id),
                # From the clock, so that an agent whose folder was lost is accepted again: its
                # incarnations are greater than those that it had.
                ("incarnation", str(int(time.time()))),
                ("forgotten", "0"),
            ):
                self._db.execute("INSERT OR IGNORE INTO mark VALUES (?, ?)", (name, value))
        marks = dict(self._db.execute("SELECT name, value FROM mark"))
        for name in ("layout", "incarnation", "forgotten"):
            if not str(marks[name]).isdecimal():
                raise _Damaged(f"the mark {name} is {marks[name]!r}, which is not a number")
        if int(marks["layout"]) != _LAYOUT:
            raise OutboxRefused(
                f"the agent's outbox {self.path} was written by another Rung; install that, or "
                "give the agent another folder"
            )
        if agent_id not in {None, marks["agent_id"]}:
            raise OutboxRefused(
                f"the agent's outbox {self.path} belongs to the agent {marks['agent_id']!r}, not "
                f"{agent_id!r}; start it under that name or give it another folder"
            )
        (last,) = self._db.execute("SELECT max(number) FROM fact").fetchone()
        forgotten = int(marks["forgotten"])
        return Marks(
            marks["spool_id"],
            marks["agent_id"],
            int(marks["incarnation"]),
            forgotten,
            max(forgotten, last or 0),
        )


def _apply(db: sqlite3.Connection, change: Change) -> None:
    match change:
        case RunSaved():
            db.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", change)
        case RunEnded():
            db.execute("DELETE FROM run WHERE allocation_id = ?", change)
            db.execute("DELETE FROM taken WHERE allocation_id = ?", change)
        case MessagesTaken():
            db.execute("INSERT OR REPLACE INTO taken VALUES (?, ?, ?)", change)
        case Marked():
            db.execute("INSERT OR REPLACE INTO mark VALUES (?, ?)", change)


def _check_whole(db: sqlite3.Connection) -> None:
    """Read every page once, so that damage is found now and not later.

    Raises:
        _Damaged: the check failed.
        sqlite3.DatabaseError: as above.
    """
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise _Damaged(str(found))


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, timeout=5)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_TABLES)
    except sqlite3.Error:
        db.close()
        raise
    return db
