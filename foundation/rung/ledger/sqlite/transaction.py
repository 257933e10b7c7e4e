"""One transaction of any size on a ledger's SQLite file.

Theory of operation. The transaction has a connection of its own, used by one thread. Pages that
do not fit into the connection's cache go to the write-ahead log, so memory does not grow with what
is appended; the log does, and is folded into the file after the commit. Without its commit frame
SQLite ignores these pages: a process that is killed at any moment leaves the ledger unchanged.

The `FairLock` is held from the beginning to the end, so every other writer waits, those of this
process included. The body must not append through the ledger itself.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from rung.events.errors import LedgerError, LedgerUnavailable
from rung.ledger.port import Record
from rung.ledger.sqlite.errors import explain
from rung.ledger.sqlite.fair_lock import FairLock
from rung.ledger.sqlite.notify import Notifier
from rung.ledger.sqlite.schema import connect
from rung.ledger.sqlite.tables import Metadata, SqliteTables, retention_of
from rung.ledger.sqlite.writer import Changes, Ends, Row, Statement, read_ends

_CACHE_KIB: Final = 65_536
"""Pages beyond this are written to the log before the commit."""

T = TypeVar("T")


class SqliteTransaction(SqliteTables):
    """A ledger's file within a transaction; implements `rung.ledger.port.Ledger`, but `follow`.

    Its reads include its own writes. It can be used until its `async with` ends.
    """

    def __init__(self, metadata: Metadata, notifier: Notifier) -> None:
        """Prepare it; `running` begins.

        Args:
            metadata: of the file.
            notifier: wakes followers after the commit.
        """
        super().__init__(metadata)
        self._notifier = notifier
        self._executor = ThreadPoolExecutor(1, "ledger-transaction")
        self._lock = FairLock(metadata.path.parent)
        self._database: sqlite3.Connection | None = None
        self._ends = Ends(retention_of(metadata))
        self._failure: LedgerError | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Begin; commit at the end of the body, or roll back if it raised.

        Raises:
            LedgerUnavailable: the disk is full, or a statement failed before; nothing is changed.
            LedgerError: the file cannot be written.
        """
        try:
            await self._run(self._begin)
            yield
            await self._run(self._commit)
        finally:
            try:
                await self._run(self._end)
            finally:
                self._executor.shutdown(wait=False)

    def follow(self, topic: str, partition: int, position: int) -> AsyncIterator[Sequence[Record]]:
        """Raise: a transaction cannot be followed."""
        place = f"{topic}/{partition} from {position} on"
        raise LedgerError(f"{place}: a transaction cannot be followed")

    async def close(self) -> None:
        """Do nothing: a transaction ends with its `async with`."""

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return await self._run(lambda: query(self._open()))

    async def _write(self, rows: Sequence[Row], _: int, statement: Statement | None) -> list[int]:
        return await self._run(lambda: self._insert(rows, statement))

    async def _run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._executor, self._explained, work)
        except RuntimeError as error:
            raise LedgerUnavailable(f"a transaction on {self._path} has ended") from error
        return await running

    def _explained(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            self._failure = explain(error, self._path)
            raise self._failure from error

    def _begin(self) -> None:
        self._lock.__enter__()
        self._database = connect(self._path)
        self._database.text_factory = bytes  # as the reader's queries expect
        self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._database.execute("BEGIN IMMEDIATE")
        self._ends.reset(read_ends(self._database))
        self._notifier.connect()

    def _open(self) -> sqlite3.Connection:
        """Return the connection, unless a failed statement ended the transaction."""
        if self._failure is not None:
            raise self._failure
        assert self._database is not None, "a transaction is used before it began"
        return self._database

    def _insert(self, rows: Sequence[Row], statement: Statement | None) -> list[int]:
        database = self._open()
        changes = Changes()
        positions = self._ends.place(rows, changes)
        if statement:
            changes.statements.append(statement)
        changes.apply(database)
        return positions

    def _commit(self) -> None:
        self._open().execute("COMMIT")
        self._notifier.notify()

    def _end(self) -> None:
        """Roll back unless committed, and close the file."""
        try:
            if self._database is not None:
                self._database.close()  # rolls back
        finally:
            self._notifier.close()
            self._lock.close()
