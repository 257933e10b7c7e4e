"""A ClickHouse server, through clickhouse-driver and its native protocol.

Calls run on a few threads, each with a connection of its own, so that a long insert delays no
query. Where the server does not answer, a call ends with `SeriesUnavailable` after a bounded time;
broken connections are opened again.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from rung.metrics.clickhouse.address import PASSWORD, Address
from rung.metrics.clickhouse.engine import Parameter, Tables
from rung.metrics.clickhouse.errors import SeriesError, SeriesUnavailable, explain, first_line
from rung.metrics.clickhouse.literal import fill
from rung.metrics.clickhouse.native import Column

if TYPE_CHECKING:
    from clickhouse_driver import Client

T = TypeVar("T")

_CONNECTIONS: Final = 4
_CONNECT_S_MAX: Final = 5.0
_PING_S_MAX: Final = 5.0
_HAS_ASYNC_INSERT: Final = (21, 11)
_HAS_VIEWS: Final = (20, 12)
_HAS_TOKENS: Final = (22, 3)
_REFUSED_USER: Final = frozenset({192, 193, 194, 516})
_REFUSED_RIGHT: Final = frozenset({164, 291, 497})
_UNKNOWN_DATABASE: Final = 81


class Server:
    """One database of one server."""

    def __init__(self, address: Address, *, read_only: bool = False) -> None:
        """Prepare it; nothing is opened yet.

        Args:
            address: of the database.
            read_only: have the server refuse whatever would change it.
        """
        self._address: Final = address
        self._read_only: Final = read_only
        self._threads: Final = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="series")
        self._free: Final = asyncio.Semaphore(_CONNECTIONS)
        self._idle: Final[deque[_Connection]] = deque()
        self._busy: Final[set[_Connection]] = set()
        self._closed = False

    @property
    def place(self) -> str:
        """The address without its password."""
        return self._address.place

    @property
    def remedy(self) -> str:
        """What to do about a database that cannot be used."""
        return _remedy(self._address)

    async def run(self, call: Callable[[Tables], T]) -> T:
        """Run a call on a connection of its own.

        Raises:
            SeriesUnavailable: the server does not answer, or all connections are waiting for it.
            SeriesError: the server refuses.
        """
        try:
            # Not `wait_for`: Python 3.11's forgets a cancellation that comes as it returns.
            async with asyncio.timeout(self._address.timeout_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise SeriesUnavailable(
                f"{self.place}: {_CONNECTIONS} requests wait for the server already"
            ) from error
        if self._closed:
            self._free.release()
            raise SeriesUnavailable(f"{self.place}: closed")
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, self._with_connection, call)
        running.add_done_callback(self._freed)
        # A caller that leaves must not free the thread before it is done.
        return await asyncio.shield(running)

    async def release(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def close(self) -> None:
        """Close all connections; calls that still wait for the server fail."""
        self._closed = True
        for connection in list(self._busy):
            connection.cut()
        await asyncio.to_thread(self._threads.shutdown)
        await self.release()

    def _freed(self, running: asyncio.Future[Any]) -> None:
        self._free.release()
        if not running.cancelled():
            running.exception()  # retrieved, even if the caller has left

    def _with_connection(self, call: Callable[[Tables], T]) -> T:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = _Connection(self._address, read_only=self._read_only)
        self._busy.add(connection)
        try:
            return call(connection)
        finally:
            self._busy.discard(connection)
            self._idle.append(connection)


class _Connection:
    """One connection, made at its first statement and again after it broke."""

    def __init__(self, address: Address, *, read_only: bool) -> None:
        self._address: Final = address
        self._client: Final = _client(address)
        self._always: Final[dict[str, object]] = {"readonly": 2} if read_only else {}
        self._select: Final = self._always | {
            "max_execution_time": max(1, round(address.timeout_s))
        }

    @property
    def place(self) -> str:
        return self._address.place

    @property
    def remedy(self) -> str:
        return _remedy(self._address)

    @property
    def version(self) -> tuple[int, int]:
        if not self._client.connection.connected:
            self._ask("SELECT 1", self._always)
        major, minor, _ = self._client.connection.server_info.version_tuple()
        return major, minor

    def execute(self, sql: str) -> None:
        self._ask(sql, self._always)

    def rows(self, sql: str, kind: type[T], /, **parameters: Parameter) -> list[T]:
        answer = self._ask(fill(sql, parameters), self._select)
        return msgspec.convert(answer, list[kind])  # type: ignore[valid-type]

    def insert(self, table: str, columns: Sequence[Column], *, again: bool = False) -> None:
        names = ", ".join(column.name for column in columns)
        # Acknowledged has to mean stored, whatever the user's profile on the server says.
        settings: dict[str, object] = {}
        if self.version >= _HAS_ASYNC_INSERT:
            settings["async_insert"] = 0
        if self.version >= _HAS_VIEWS:  # else a batch that is written again misses the view
            settings["deduplicate_blocks_in_dependent_materialized_views"] = 1
        if again and self.version >= _HAS_TOKENS:
            settings["insert_deduplication_token"] = token_hex(8)
        elif again:
            settings["insert_deduplicate"] = 0
        self._ask(
            f"INSERT INTO {table} ({names}) VALUES",
            self._always | settings | {"strings_as_bytes": True},
            [column.values for column in columns],
        )

    def cut(self) -> None:
        """Make a call that waits for the server on another thread fail."""
        link = self._client.connection.socket
        if link is not None:
            with contextlib.suppress(OSError):
                link.shutdown(2)

    def close(self) -> None:
        self._client.disconnect()

    def _ask(
        self, sql: str, settings: dict[str, object], columns: list[Any] | None = None
    ) -> list[Any]:
        from clickhouse_driver import errors  # noqa: PLC0415 - in the extra `clickhouse` alone

        try:
            answer: list[Any] = self._client.execute(
                sql, columns, settings=settings, columnar=columns is not None
            )
        except errors.ServerException as error:
            raise self._explained(error.code, error.message) from error
        except (TimeoutError, errors.SocketTimeoutError) as error:
            raise SeriesUnavailable(
                f"{self.place}: no answer in {self._address.timeout_s:g} s; is it this port where "
                "ClickHouse speaks its own protocol (9000, or 9440 with TLS)?"
            ) from error
        except (OSError, EOFError, errors.Error) as error:
            raise SeriesUnavailable(f"{self.place}: {_reason(error)}") from error
        return answer

    def _explained(self, code: int, text: str) -> SeriesError:
        if code in _REFUSED_USER:
            return SeriesError(
                f"{self.place}: the server refuses the user or the password: give the user in "
                f"--series and the password in {PASSWORD} ({first_line(text)})"
            )
        if code == _UNKNOWN_DATABASE:
            return SeriesError(
                f"{self.place}: the server has no database {self._address.database}: name another "
                f"in --series, or have it made by CREATE DATABASE {self._address.database}"
            )
        if code in _REFUSED_RIGHT:
            return SeriesError(
                f"{self.place}: the user {self._address.user} lacks a right ({first_line(text)})"
            )
        return explain(self, text, code)


def _client(address: Address) -> "Client":
    try:
        from clickhouse_driver import Client  # noqa: PLC0415 - in the extra `clickhouse` alone
    except ImportError as error:
        raise SeriesError(
            "series in a ClickHouse server need clickhouse-driver: pip install 'rung[clickhouse]'"
        ) from error
    # Its warnings are raised as well; without a handler they would go to standard error.
    logging.getLogger("clickhouse_driver").setLevel(logging.CRITICAL)
    return Client(
        address.host,
        port=address.port,
        user=address.user,
        password=address.password,
        database=address.database,
        client_name="rung",
        connect_timeout=min(address.timeout_s, _CONNECT_S_MAX),
        sync_request_timeout=min(address.timeout_s, _PING_S_MAX),
        send_receive_timeout=address.timeout_s,
        tcp_keepalive=True,
        secure=address.secure,
        verify=address.verify,
        ca_certs=address.ca_file,
    )


def _remedy(address: Address) -> str:
    return (
        "Name another, empty database in --series, for all metrics services and gateways: it is "
        f"filled as far back as the ledger goes. Keep {address.place}: what is older may be there "
        "alone"
    )


def _reason(error: Exception) -> str:
    text = first_line(str(error)).removeprefix("Code: 210.").strip()
    return text or "the server closed the connection"
