"""The spool's file: SQLite, write-ahead log with `synchronous=FULL`.

A file that is damaged is set aside (renamed, with the time) and a new one is begun, with another
spool id and a higher incarnation, so that the scheduler takes the agent's runs for lost and has
them trained again from what the ledger has. Nothing is taken over from the damaged file: if some
reports in the middle were missing, those behind them would still be believed. The file
`spool.damaged` is there until all of them are renamed, so that a process that is killed meanwhile
leaves no write-ahead log beside a file to which it does not belong.

`fact` holds what the ledger does not have yet, or did not have when the last commit was made;
`mark` whose spool it is, how many lives its agent has had, and up to which number facts were
removed. `commit` is called from one thread, all else from another.
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
"""Part of the names of files that were set aside."""
_SUFFIXES: Final = ("-shm", "-wal", "")
"""Of the database's files."""
_LAYOUT: Final = 1
_SELECT_BYTES_MAX: Final = 4 * 1024**2
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS fact (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS mark (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

_log = structlog.get_logger()


class SpoolUnusable(RungError):
    """The spool's file cannot be opened; its message says what a person can do."""


class SpoolRefused(SpoolUnusable):
    """It is of a newer version or another agent's: no later try finds it otherwise."""


class _Damaged(Exception):
    """The file's contents cannot be what was written."""


class Spooled(NamedTuple):
    """One fact as it lies in the spool."""

    number: int
    draft: Draft


class Marks(NamedTuple):
    """What the file says about itself."""

    id: str
    agent_id: str
    incarnation: int
    forgotten: int
    """Facts up to this number were removed."""
    last: int
    """The highest number given so far."""


class SpoolFile:
    """Facts and marks on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()
        self._removed = 0

    @property
    def size_bytes(self) -> int:
        """How much disk it takes, with what was written ahead."""
        size = 0
        for path in (self.path, self.path.with_name(self.path.name + "-wal")):
            with contextlib.suppress(OSError):
                size += path.stat().st_size
        return size

    def open(self, agent_id: str | None, default_agent_id: str) -> Marks:
        """Open the file, or create it for an agent, and return its marks.

        One that is damaged is set aside before.

        Raises:
            SpoolRefused: it is of a newer version, or another agent's.
            SpoolUnusable: it cannot be opened at this moment.
        """
        try:
            if self._mark.exists():
                self._set_aside("a process was killed while it set it aside")
            try:
                marks = self._open(agent_id, default_agent_id)
            except (sqlite3.DatabaseError, _Damaged) as error:
                # What SQLite calls operational is the disk's, a lock's or a permission's doing.
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self._set_aside(str(error))
                marks = self._open(agent_id, default_agent_id)
        except (sqlite3.Error, OSError) as error:
            raise SpoolUnusable(
                f"the agent's spool {self.path} cannot be opened: {error}; "
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
        """Rename the file and what belongs to it; may be killed at any moment."""
        self._mark.touch()
        at = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        aside = self.path.with_name(f"{self.path.name}.{SET_ASIDE}-{at}")
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).rename(f"{aside}{suffix}")
        self._mark.unlink()
        _log.error(
            "the spool was damaged and is set aside; what the ledger lacks is trained again",
            reason=why,
            path=str(self.path),
            aside=str(aside),
        )

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()
        self._db.close()

    def commit(self, batch: Sequence[Spooled], forgotten: int) -> None:
        """Add facts, and remove those up to a number; durable when it returns.

        Raises:
            sqlite3.Error: nothing of it was done.
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
        self._removed = max(self._removed, forgotten)

    def select(self, after: int, last: int, limit: int) -> list[Spooled]:
        """Return facts with numbers above `after` and up to `last`, in order.

        Fewer where they are large: at most one more than a few MiB hold.
        """
        rows = self._reader.execute(
            "SELECT number, topic, key, value FROM fact WHERE number > ? AND number <= ? "
            "ORDER BY number LIMIT ?",
            (after, last, limit),
        )
        found: list[Spooled] = []
        size = 0
        for number, topic, key, value in rows:
            found.append(Spooled(number, Draft(topic, key, value)))
            size += len(value)
            if size >= _SELECT_BYTES_MAX:
                break
        rows.close()
        return found

    def count_incarnation(self, above: int = 0) -> int:
        """Count one more incarnation of the agent, above one; durable when it returns."""
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
                # From the clock, so that an agent whose folder was lost is heard again: its
                # incarnations go on above those that it had.
                ("incarnation", str(int(time.time()))),
                ("forgotten", "0"),
            ):
                self._db.execute("INSERT OR IGNORE INTO mark VALUES (?, ?)", (name, value))
        marks = dict(self._db.execute("SELECT name, value FROM mark"))
        for name in ("layout", "incarnation", "forgotten"):
            if not str(marks[name]).isdecimal():
                raise _Damaged(f"the mark {name} says {marks[name]!r}, which is no number")
        if int(marks["layout"]) > _LAYOUT:
            raise SpoolRefused(f"the agent's spool {self.path} was written by a newer Rung")
        if agent_id not in {None, marks["agent_id"]}:
            raise SpoolRefused(
                f"the agent's spool {self.path} belongs to the agent {marks['agent_id']!r}, not "
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


def _check_whole(db: sqlite3.Connection) -> None:
    """Read every page once: what is damaged is found now, not when it is needed.

    Raises:
        _Damaged: something is.
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
