"""The SQLite file of a ledger: its tables and versions.

    ledger     name → value: the ledger's id, its number of partitions, the version that made it;
               under `trimmed/<first id of a stream>` the position before which its records were
               removed
    topics     number → name
    records    id → key, value; the id is topic number << 50 | partition << 40 | position
    consumers  consumer, topic, partition → the position committed last
    snapshots  name, partition → bytes

One integer key keeps each stream's records side by side in one B-tree. People read the view
`events`, which takes the id apart: `SELECT * FROM events WHERE topic = 'searches'`.

The file is made under another name and linked into place once it is complete, so an empty
`ledger.db` was truncated.
"""

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from rung.events import TOPICS
from rung.events.errors import LedgerDamaged
from rung.ledger.sqlite.errors import BUSY_MS

APPLICATION: Final = 0x52756E67  # "Rung"
VERSION: Final = 1
PARTITIONS_MAX: Final = 1024
POSITIONS_MAX: Final = 1 << 40
_WAL_PAGES: Final = 4000
"""The write-ahead log is folded into the file when it has grown to this (16 MB)."""

_SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
PRAGMA auto_vacuum = NONE;
BEGIN;
CREATE TABLE ledger (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE records (id INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB NOT NULL);
CREATE TABLE consumers (
    consumer TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    position INTEGER NOT NULL, PRIMARY KEY (consumer, topic, partition)
) WITHOUT ROWID;
CREATE TABLE snapshots (
    name TEXT NOT NULL, partition INTEGER NOT NULL, value BLOB NOT NULL,
    UNIQUE (name, partition)
);
CREATE VIEW events AS
    SELECT topics.name AS topic, records.id >> 40 & 1023 AS partition,
        records.id & 1099511627775 AS position, records.key AS key,
        CAST(records.value AS TEXT) AS event
    FROM topics JOIN records
        ON records.id >= topics.number << 50 AND records.id < (topics.number + 1) << 50;
COMMIT;
"""  # noqa: S608 - no input


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection with the ledger's settings; a read-only one returns text as bytes."""
    if read_only:
        uri = path.absolute().as_uri() + "?mode=ro"
        database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        database.text_factory = bytes
    else:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA secure_delete = OFF")
    database.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
    return database


def create(path: Path, partitions: int) -> None:
    """Create an empty ledger; one that another process creates meanwhile is left as it is."""
    made = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    made.touch(mode=0o600)  # for the system's reason, where SQLite only says that it cannot
    try:
        with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as database:
            database.executescript(_SCHEMA)
            metadata = {
                "id": str(uuid.uuid4()),
                "partitions": str(partitions),
                "rung": version("rung"),
                "doorbells": "0",
            }
            database.executemany("INSERT INTO ledger VALUES (?, ?)", metadata.items())
            database.execute("PRAGMA journal_mode = WAL")
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
        folder_fd = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            made.with_name(made.name + suffix).unlink(missing_ok=True)


def check_version(database: sqlite3.Connection, path: Path) -> None:
    """Check that a file is a ledger of the version that this release reads.

    Raises:
        LedgerDamaged: it is not.
    """
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise LedgerDamaged(
            f"{path} is an SQLite database, but not a ledger of Rung. Move it away, or name "
            "another data folder"
        )
    if found != VERSION:
        (writer,) = database.execute("SELECT value FROM ledger WHERE name = 'rung'").fetchone()
        raise LedgerDamaged(
            f"{path} was written by another Rung ({writer}, ledger version {found}); this is "
            f"Rung {version('rung')}, which reads version {VERSION}. "
            "Install that one, or name another data folder"
        )


def topic_numbers(database: sqlite3.Connection) -> dict[str, int]:
    """Return the number of each topic; topics that the file lacks are added."""
    query = "SELECT name, number FROM topics"
    known: dict[str, int] = dict(database.execute(query).fetchall())
    missing = [(name,) for name in TOPICS if name not in known]
    if missing:
        with immediate(database):
            database.executemany("INSERT OR IGNORE INTO topics (name) VALUES (?)", missing)
        known = dict(database.execute(query).fetchall())
    return {name: known[name] for name in TOPICS}


@contextlib.contextmanager
def immediate(database: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction that may write."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
