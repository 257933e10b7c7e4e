"""chDB, ClickHouse's engine inside this process: one folder, one thread, one query at a time.

Importing chDB takes over a second and some 270 MB; so that, too, happens on the thread, at the
first use.
"""

import asyncio
import fcntl
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import structlog

from rung.metrics.clickhouse.engine import Parameter, Tables
from rung.metrics.clickhouse.errors import (
    SeriesDamaged,
    SeriesError,
    SeriesLocked,
    SeriesUnavailable,
    explain,
)
from rung.metrics.clickhouse.native import Column, encode_block

if TYPE_CHECKING:
    from chdb.state.sqlitelike import Connection

T = TypeVar("T")

_log = structlog.get_logger()

_SETTINGS: Final = (
    "SET max_threads = 2, max_memory_usage = 1000000000, "
    "compile_expressions = 0, compile_aggregate_expressions = 0, "
    "deduplicate_blocks_in_dependent_materialized_views = 1, "
    "output_format_json_quote_denormals = 1, output_format_json_quote_64bit_integers = 0"
)
SET_ASIDE: Final = "damaged"
"""Part of the name of a folder that was set aside."""
_BROKEN: Final = """
SELECT table, name FROM system.detached_parts
WHERE database = currentDatabase() AND startsWith(reason, 'broken') ORDER BY table, name
"""
_ESCAPES: Final = {0: "\\0", 9: "\\t", 10: "\\n", 13: "\\r", 92: "\\\\"}


class Embedded:
    """A chDB folder, which no other process may have open meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="series")
        self._connection: Connection | None = None
        self._version = (0, 0)

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    @property
    def remedy(self) -> str:
        """What to do about a folder that cannot be used."""
        return (
            f"Stop Rung and move {self.folder} away: the next start builds it again, as far back "
            "as the ledger goes"
        )

    @property
    def version(self) -> tuple[int, int]:
        """Year and number of the ClickHouse release that chDB holds."""
        return self._version

    async def run(self, call: Callable[[Tables], T]) -> T:
        """Run a call on the engine's thread; calls run one after another, in order.

        Raises:
            SeriesLocked: another process has the folder open.
            SeriesDamaged: chDB cannot open it.
            SeriesError: the folder cannot be made or written.
        """
        return await self._on_thread(lambda: call(self._connected()))

    async def release(self) -> None:
        """Close the folder until the next use."""
        await self._on_thread(self._disconnect)

    async def set_aside(self, mark: str) -> Path:
        """Close the folder and rename it; the next use makes an empty one.

        Args:
            mark: ends the new name.

        Raises:
            SeriesDamaged: it cannot be renamed.
        """
        return await self._on_thread(lambda: self._set_aside(mark))

    async def close(self) -> None:
        """Finish pending calls and close the folder."""
        await self.release()
        self._thread.shutdown()

    def execute(self, sql: str) -> None:
        """Run a statement that returns nothing; on the engine's thread only."""
        self._query(sql, {})

    def rows(self, sql: str, kind: type[T], /, **parameters: Parameter) -> list[T]:
        """Return a query's rows; on the engine's thread only."""
        data = self._query(sql, parameters)
        return msgspec.json.Decoder(kind, strict=False).decode_lines(data)

    def insert(self, table: str, columns: Sequence[Column], *, again: bool = False) -> None:
        """Insert a block; stored when this returns; on the engine's thread only.

        It is a statement that reads the block from a file: chDB's streaming inserts raise nothing
        where the table cannot be written, such as on a full disk, and the block is lost.

        Raises:
            SeriesError: the rows are not stored; `SeriesUnavailable` where the disk is full.
        """
        names = ", ".join(column.name for column in columns)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(encode_block(columns))
                file.seek(0)
                source = f"'/dev/fd/{file.fileno()}'"  # the folder's own path may hold wildcards
                token = f"SETTINGS insert_deduplication_token = '{token_hex(8)}'" if again else ""
                self._query(
                    f"INSERT INTO {table} ({names}) FROM INFILE {source} {token} FORMAT Native", {}
                )
        except OSError as error:
            raise SeriesUnavailable(f"{self.folder} cannot be written ({error})") from error

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _connected(self) -> "Embedded":
        if self._connection is None:
            self._connect()
        return self

    def _connect(self) -> None:
        _check_free(self.folder)
        from chdb.state.sqlitelike import connect  # noqa: PLC0415 - takes a second and 270 MB

        try:
            self._connection = connect(str(self.folder))
        except RuntimeError as error:
            raise SeriesDamaged(
                f"{self.folder} cannot be opened ({_last_line(error)}). {self.remedy}"
            ) from error
        self._check_parts()
        self.execute(_SETTINGS)
        release = self._query("SELECT version()", {}).decode().strip('[]"\n').split(".")
        self._version = int(release[0]), int(release[1])

    def _check_parts(self) -> None:
        """Make sure that no part is missing: chDB silently detaches damaged ones.

        Raises:
            SeriesDamaged: it did so now, or earlier.
        """
        broken = self.rows(_BROKEN, tuple[str, str])
        if broken:
            self._disconnect()
            table, part = broken[0]
            raise SeriesDamaged(
                f"{self.folder} lacks rows: {_many(len(broken))} damaged, first {part} of the"
                f" table {table}. {self.remedy}"
            )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _set_aside(self, mark: str) -> Path:
        try:
            self._disconnect()
        except RuntimeError as error:  # the folder is not used again
            _log.warning("series not closed", reason=_last_line(error))
            self._connection = None
        aside = self.folder.with_name(f"{self.folder.name}.{SET_ASIDE}-{mark}")
        try:
            if self.folder.exists():
                self.folder.rename(aside)
        except OSError as error:
            raise SeriesDamaged(f"{self.folder} cannot be renamed to {aside} ({error})") from error
        return aside

    def _query(self, sql: str, parameters: dict[str, Parameter]) -> bytes:
        values = {
            name: value.translate(_ESCAPES) if isinstance(value, str) else value
            for name, value in parameters.items()
        }
        try:
            result = self._opened().query(sql, "JSONCompactEachRow", params=values or None)
        except RuntimeError as error:
            raise explain(self, str(error)) from error
        data: bytes = result.bytes()
        return data

    def _opened(self) -> "Connection":
        assert self._connection is not None, "the folder is opened first"
        return self._connection


def _check_free(folder: Path) -> None:
    """Refuse what chDB would refuse without a reason."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        status = folder / "status"
        if not status.exists():
            return
        with status.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SeriesLocked(
            f"{folder} is open in another process; chDB lets one in. Is another `rung up`, or a "
            "chDB shell, running on it?"
        ) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise SeriesDamaged(f"{folder} cannot be used: it is no folder") from error
    except OSError as error:
        raise SeriesError(
            f"{folder} cannot be used ({error}). May this user write there, and is it a folder?"
        ) from error


def _many(parts: int) -> str:
    return "1 part is" if parts == 1 else f"{parts} parts are"


def _last_line(error: Exception) -> str:
    return str(error).strip().rsplit("\n", 1)[-1][:500]
