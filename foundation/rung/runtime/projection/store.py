"""The SQLite file of a projection: one writer, several readers, each in a thread of its own.

The file is its own snapshot: the tables and the positions up to which the ledger was folded are
committed together, so a restart goes on from there. Nothing in it is needed: a file that is
damaged, of another version, or of another ledger is deleted; where another replica published a
copy of its own that one is gone on from, else it is rebuilt. So is one with records that could not
be folded, once another release opens it, which may be able to.
"""

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import structlog

from rung.events import LedgerError, LedgerUnavailable
from rung.ledger.sqlite.errors import explain
from rung.runtime.projection.copies import Copies
from rung.runtime.projection.projection import Projection

P = ParamSpec("P")
T = TypeVar("T")

_FORMAT: Final = 1
_OWN: Final = """
CREATE TABLE folded (signature TEXT NOT NULL, release TEXT NOT NULL);
CREATE TABLE folded_positions (
    topic TEXT, partition INTEGER, position INTEGER NOT NULL, digest INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE folded_keys (key TEXT PRIMARY KEY, known BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE folded_marks (
    key TEXT, origin TEXT, sequence INTEGER NOT NULL, PRIMARY KEY (key, origin)
) WITHOUT ROWID;
CREATE TABLE folded_rejected (
    topic TEXT, partition INTEGER, position INTEGER, key TEXT NOT NULL, reason TEXT NOT NULL,
    value TEXT NOT NULL, at TEXT NOT NULL, PRIMARY KEY (topic, partition, position)
) WITHOUT ROWID;
"""
RELEASE: Final = version("rung")
_BUSY_S: Final = 10.0
_READERS: Final = 2
_CACHE_KIB: Final = 16_384
_WAL_BYTES_MAX: Final = 16 << 20
_SMALL: Final = 32 << 20
"""A file up to this size is checked page by page when it is opened."""
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_WORLD: Final = _DAMAGED | {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_INTERRUPT,
}

_log = structlog.get_logger()


class StoreDamaged(LedgerError):
    """The file of a projection is damaged, or of another ledger; it is to be rebuilt."""

    retriable = True


def is_of_the_world(error: BaseException) -> bool:
    """Return whether an error is the disk's or the file's, not that of a statement."""
    if isinstance(error, OSError | MemoryError):
        return True
    return isinstance(error, sqlite3.Error) and _code(error) in _WORLD


def prepare(db: sqlite3.Connection, projection: Projection, ledger_id: str) -> None:
    """Create the tables of a projection in an empty database."""
    db.executescript(f"{_OWN}{projection.schema}")
    db.execute("INSERT INTO folded VALUES (?, ?)", (_signature(projection, ledger_id), RELEASE))


class Store:
    """The open file of one projection."""

    def __init__(
        self,
        projection: Projection,
        ledger_id: str,
        folder: Path | None = None,
        copies: Copies | None = None,
    ) -> None:
        """Take whose it is; nothing is opened yet.

        Args:
            projection: whose tables it has.
            ledger_id: of the ledger that is folded.
            folder: where the file lies; in a temporary folder if not given.
            copies: that other replicas published, if they do.
        """
        self._projection = projection
        self._ledger_id = ledger_id
        self._folder = folder
        self._copies = copies
        self._tables: Final = f"{zlib.crc32(_signature(projection, ledger_id).encode()):08x}"
        self._temporary: weakref.finalize[..., Store] | None = None
        """Removes the temporary folder, at the latest when nothing refers to this any more."""
        self._path = Path()
        self._db: sqlite3.Connection | None = None
        self._writer = ThreadPoolExecutor(1, f"project-{projection.name}")
        self._readers = ThreadPoolExecutor(_READERS, f"query-{projection.name}")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._generation = 0
        self._swap = threading.Lock()
        """Held while the file is rebuilt, and while it is connected to."""
        self._events: asyncio.AbstractEventLoop | None = None
        self.rebuilt: Callable[[], None] = lambda: None
        """Called in the event loop once the file was rebuilt."""

    @property
    def path(self) -> Path:
        """Where the file lies."""
        return self._path

    @property
    def db(self) -> sqlite3.Connection:
        """The connection that writes; for what runs in `write` alone."""
        assert self._db is not None, "not open"
        return self._db

    async def open(self) -> None:
        """Open the file; where it cannot be gone on from, it is rebuilt.

        Raises:
            LedgerError: the folder cannot be written.
        """
        self._events = asyncio.get_running_loop()
        await self._in(self._writer, self._open)

    @property
    def generation(self) -> int:
        """How often the file was rebuilt."""
        return self._generation

    async def rebuild(self, generation: int, reason: str) -> None:
        """Delete the file and begin with an empty one.

        Args:
            generation: of the file that is damaged; nothing happens if that one is gone.
            reason: for the log.

        Raises:
            LedgerError: the folder cannot be written.
        """
        await self._in(self._writer, self._rebuild, generation, reason)

    async def write(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` returns in the one thread that writes.

        Raises:
            StoreDamaged: the file is damaged.
            LedgerError: the disk is full or fails.
        """

        def call() -> T:
            if self._db is None:  # it could not be rebuilt before
                self._make()
            return work(*args, **kwargs)

        return await self._in(self._writer, call)

    async def read(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what a query returns, in a thread, of the tables as they were committed last.

        Raises:
            StoreDamaged: the file is damaged; it is being rebuilt.
            LedgerError: the disk fails.
        """

        def work() -> T:
            return self.peek(query, *args, **kwargs)

        return await self._in(self._readers, work)

    def peek(
        self,
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what a query returns, in this very thread: for a few rows only.

        Raises:
            StoreDamaged: the file is damaged; it is being rebuilt.
            LedgerError: the disk fails.
        """
        generation = self._generation
        try:
            with self._explained():
                db = self._connection()
                db.execute("BEGIN")  # so that all of its statements see one commit
                try:
                    return query(db, *args, **kwargs)
                finally:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
        except StoreDamaged as error:
            with contextlib.suppress(RuntimeError):  # it is being closed
                self._writer.submit(self._rebuild, generation, str(error))
            raise

    async def publish(self, worth: int) -> None:
        """Publish a copy, if that has so many more records than the newest one.

        Raises:
            LedgerError: the disk is full or fails.
            ObjectError: the object store fails.
        """
        await self._in(None, self._publish, worth)

    async def close(self) -> None:
        """Finish what is being written, and close the file."""
        await asyncio.to_thread(self._close)

    async def _in(
        self,
        pool: ThreadPoolExecutor | None,
        work: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        def call() -> T:
            return work(*args, **kwargs)

        with self._explained():
            return await asyncio.get_running_loop().run_in_executor(pool, call)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what the file or its disk is to blame for as an error of the ledger."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if not self._path.parent.is_dir():
                raise StoreDamaged(f"{self._path.parent} was removed") from error
            if isinstance(error, sqlite3.Error) and _code(error) in _DAMAGED:
                raise StoreDamaged(f"{self._path} is damaged ({error})") from error
            if not (is_of_the_world(error) or isinstance(error, sqlite3.ProgrammingError)):
                raise  # else the disk's fault, or that of a file that was closed to be rebuilt
            raise explain(error, self._path) from error

    def _open(self) -> None:
        self._path = self._path_of(self._folder)
        reason = self._unusable()
        if reason is None and self._path.exists():
            return
        if reason is not None:
            _log.warning("projection rebuilt", path=str(self._path), reason=reason)
        if not self._bring():
            self._make()

    def _bring(self) -> bool:
        """Have another replica's copy in place of this file; return whether it will do.

        Whether its records are those of the ledger is found out as for any file.
        """
        if self._copies is None:
            return False
        self._remove()
        copy = self._path.with_name(f"{self._path.name}.copy")
        if not self._copies.bring(self._projection.name, self._tables, copy):
            return False
        copy.chmod(0o600)
        copy.rename(self._path)
        if (reason := self._unusable()) is not None:
            _log.warning("no copy of a projection", path=str(self._path), reason=reason)
        return reason is None

    def _publish(self, worth: int) -> None:
        assert self._copies is not None, "nothing is published"
        name, generation = self._projection.name, self._generation
        newest = self._copies.newest(name, self._tables)
        copy = self._path.with_name(f"{self._path.name}.copy")
        copy.unlink(missing_ok=True)  # of a process that was killed
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as db:
                if _records(db) - (0 if newest is None else newest.records) < worth:
                    return
                db.execute("VACUUM INTO ?", (str(copy),))
            with contextlib.closing(sqlite3.connect(copy)) as db:
                records = _records(db)
            if generation == self._generation:  # else it was rebuilt meanwhile
                self._copies.publish(name, self._tables, copy, records)
        finally:
            copy.unlink(missing_ok=True)

    def _path_of(self, folder: Path | None) -> Path:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="rung-projections-"))
            self._temporary = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder / f"{self._projection.name}.db"

    def _unusable(self) -> str | None:
        """Open a file that is there; return why it cannot be gone on from, None if it can."""
        if not self._path.exists():
            return None
        try:
            db = self._db = _connect(self._path)
            if self._path.stat().st_size <= _SMALL:
                (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    return f"damaged: {found}"
            (signature,) = db.execute("SELECT signature FROM folded").fetchone()
        except sqlite3.Error as error:
            if is_of_the_world(error) and _code(error) not in _DAMAGED:
                raise
            return f"damaged: {error}"
        except TypeError:
            return "damaged: it is empty"
        if signature != _signature(self._projection, self._ledger_id):
            return f"it is {signature}, not {_signature(self._projection, self._ledger_id)}"
        return _rejected_by_another(db)

    def _rebuild(self, generation: int, reason: str) -> None:
        if generation != self._generation:
            return
        _log.warning("projection rebuilt", path=str(self._path), reason=reason)
        self._make()

    def _make(self) -> None:
        """Have an empty file in place of this one."""
        self._projection.forget()
        try:
            with self._swap:
                self._generation += 1
                self._remove()
                self._path.touch(0o600)
                db = _connect(self._path)
                prepare(db, self._projection, self._ledger_id)
                self._db = db
        finally:  # where it fails, who is woken tries again
            assert self._events is not None, "not open"
            self._events.call_soon_threadsafe(self._say_rebuilt)

    def _remove(self) -> None:
        """Remove the file, and have its folder there."""
        if self._db is not None:
            self._db.close()
            self._db = None
        for suffix in ("", "-wal", "-shm", ".copy"):
            self._path.with_name(f"{self._path.name}{suffix}").unlink(missing_ok=True)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _say_rebuilt(self) -> None:
        self.rebuilt()

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's connection for reading."""
        generation, db = getattr(self._local, "open", (-1, None))
        if db is None or generation != self._generation:
            with self._swap:
                if db is not None:
                    self._connections.remove(db)
                    db.close()
                    self._local.open = -1, None
                if self._db is None:
                    raise LedgerUnavailable(f"{self._path} is being rebuilt")
                db = sqlite3.connect(
                    self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
                )
                self._connections.append(db)
                self._local.open = self._generation, db
            db.execute("PRAGMA query_only = ON")
        found: sqlite3.Connection = db
        return found

    def _close(self) -> None:
        self._readers.shutdown()
        self._writer.shutdown()
        for db in [*self._connections, *filter(None, [self._db])]:
            with contextlib.suppress(sqlite3.Error):
                db.close()
        if self._temporary is not None:
            self._temporary()


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit what is written in the context, all or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}")
    return db


def _rejected_by_another(db: sqlite3.Connection) -> str | None:
    """Return why another release's file is to be folded again, None where it can be gone on from.

    That is where nothing is missing: then it is this release's file from now on.
    """
    (release,) = db.execute("SELECT release FROM folded").fetchone()
    if release == RELEASE:
        return None
    (count,) = db.execute("SELECT count(*) FROM folded_rejected").fetchone()
    if count:
        return f"release {release} could not fold {count} records; {RELEASE} may be able to"
    db.execute("UPDATE folded SET release = ?", (RELEASE,))
    return None


def _records(db: sqlite3.Connection) -> int:
    """Return how many records are folded, as positions count them."""
    (records,) = db.execute("SELECT coalesce(sum(position), 0) FROM folded_positions").fetchone()
    return int(records)


def _code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _signature(projection: Projection, ledger_id: str) -> str:
    schema = zlib.crc32(f"{_OWN}{projection.schema}".encode())
    version = f"{_FORMAT}.{projection.version}.{schema:08x}"
    return f"{projection.name} version {version} of ledger {ledger_id}"
