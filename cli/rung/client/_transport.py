"""HTTP requests to a gateway, retried with back-off.

Failed connections and the statuses 502, 503 and 504 are retried until a time limit, so that a
client outlasts a restart of the server; 429 is retried after the time that it names. Each POST
carries an Idempotency-Key, so that a repetition has no further effect. A server that never
answered is retried for a few seconds only, and not at all if no connection can be made. While an
answer does not begin, the server's health is requested beside it: so a server that accepts
connections and hangs is detected within seconds, however long an answer may take.

The server is located again before each retry, because a restart may change its port. A server that
answered once and then cannot be located is retried, too: it announces itself at the end of its
start. After a 401 the request is repeated if the located token has changed.

The answer to a write has a header with the positions that it reached. Later requests carry them,
so that any replica's answer includes the client's own writes.

The server of a data folder is connected to by the Unix socket in that folder, and the process at
the other end must belong to the caller's user before a byte is sent.
"""

import asyncio
import base64
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from rung.backoff import Backoff
from rung.client._data_folder import SOCKET, DataFolderError, check_owner, check_peer, short_path
from rung.client._error import Unreachable, error_of
from rung.client._http import Answer, ConnectionFailed, HttpError, InvalidAddress, Pool, Request
from rung.client._location import Locate, Location

API: Final = "/api/v1"
_HEALTH: Final = "/healthz"
_AFTER: Final = "Rung-After"

_LATER: Final = frozenset({502, 503, 504})
_LIMITED: Final = 429
_LIMITED_S: Final = 120.0
"""How long to retry what is refused because the token sent too many requests."""
_BACKOFF: Final = Backoff(0.05, 2.0)
_UNMET_S: Final = 3.0
"""How long to retry with a server that never answered."""
_QUIET_S: Final = 5.0
"""Interval in which the server's health is requested while there is no answer."""
_HEALTH_S: Final = 10.0
"""How long that may take; any answer counts."""
_TRANSIENT: Final = (HttpError, TimeoutError)


_after_decoder: Final = msgspec.json.Decoder(tuple[str, list[tuple[str, int, int]]])
"""A ledger's id, and for each place its topic, partition and the last written position."""

T = TypeVar("T")

Query = Mapping[str, object]
"""Parameters of a request; those that are None are left out."""


class Transport:
    """Requests to one gateway."""

    def __init__(self, locate: Locate, *, patience_s: float, timeout_s: float) -> None:
        self._locate = locate
        self._location: Location | None = None
        self._answered = False
        self._after: str | None = None
        """The positions that this client's writes reached."""
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._pools: dict[Path | None, Pool] = {}
        """By the data folder whose socket they use; None: for URLs."""
        self._opened = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """Of the gateway."""
        return self._where().url

    async def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.close()
        self._pools.clear()
        self._opened.close()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """Return the body of an answer.

        Raises:
            ClientError: it was refused, or not answered within the time limit.
        """
        return await self._send(_Request("GET", path, query=query or {}))

    async def post(
        self,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> bytes:
        """Send a request that takes effect once, however often it is repeated.

        Raises:
            ClientError: it was refused, or not answered within the time limit.
        """
        keyed = {"Idempotency-Key": key or secrets.token_hex(16), **(headers or {})}
        return await self._send(_Request("POST", path, body=body, headers=keyed))

    @contextlib.asynccontextmanager
    async def open(
        self,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float,
    ) -> AsyncIterator[Answer]:
        """Open an answer to be read piece by piece; only its beginning is retried.

        A redirection is not followed.

        Raises:
            ClientError: it was refused, or not answered within the time limit.
        """
        request = _Request("GET", path, query=query or {}, headers=headers or {})
        stack = contextlib.AsyncExitStack()

        async def attempt() -> Answer:
            response = await stack.enter_async_context(self._request(request, silence_s))
            if response.status >= 400:
                body, later = await response.read(), response.headers.get("retry-after")
                await stack.aclose()
                raise _Refused(response.status, body, later)
            return response

        async with stack:
            yield await self._retried(attempt)

    @contextlib.asynccontextmanager
    async def elsewhere(
        self, url: str, *, headers: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[Answer]:
        """Open an URL of another server, without the token and without retries.

        Raises:
            HttpError: it does not answer.
            TimeoutError: nothing was received for so long.
        """
        request = Request("GET", url, headers)
        async with await self._pool(None).send(request, silence_s=silence_s) as response:
            yield response

    async def _send(self, request: "_Request") -> bytes:
        async def attempt() -> bytes:
            async with self._request(request, self._timeout_s) as response:
                body = await response.read()
                if response.status >= 400:
                    raise _Refused(response.status, body, response.headers.get("retry-after"))
                return body

        return await self._retried(attempt)

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        began = time.monotonic()

        async def located() -> T:
            """Make an attempt, and at once another one if the server's location has changed."""
            while True:
                try:
                    return await attempt()
                except _Refused as refused:
                    late = time.monotonic() >= began + self._patience_s
                    if refused.status != 401 or late or not self._moved():
                        raise
                except ConnectionFailed:
                    if self._answered or not self._moved():
                        raise

        def forget(_error: BaseException, _wait_s: float) -> None:
            self._location = None

        try:
            return await _BACKOFF.retry(
                located, self._retry_s_after, least_s=_least_s, note=forget
            )
        except _Refused as refused:
            raise error_of(refused.status, refused.body) from None
        except _TRANSIENT as error:
            raise self._unreachable(error) from error

    def _retry_s_after(self, error: BaseException) -> float:
        """Return for how long to retry after an error."""
        match error:
            case _Refused() if error.status == _LIMITED:
                return max(_LIMITED_S, self._patience_s)
            case _Refused():
                return self._patience_s if error.status in _LATER else 0.0
            case ConnectionFailed() if not self._answered:
                return 0.0
            case Unreachable():
                return self._patience_s if self._answered else 0.0
            case _:
                return self._patience() if isinstance(error, _TRANSIENT) else 0.0

    @contextlib.asynccontextmanager
    async def _request(self, request: "_Request", silence_s: float) -> AsyncIterator[Answer]:
        location = self._where()
        headers = dict(request.headers)
        if location.token:
            headers["Authorization"] = f"Bearer {location.token}"
        if self._after is not None:
            headers[_AFTER] = self._after
        query = {name: str(value) for name, value in request.query.items() if value is not None}
        path = f"{request.path}{'&' if '?' in request.path else '?'}" if query else request.path
        url = location.url.rstrip("/") + API + path + urlencode(query)
        try:
            asking = self._pool(location.data).send(
                Request(request.method, url, headers, request.body), silence_s=silence_s
            )
            async with await self._begun(asking, location) as response:
                self._answered = True
                written = response.headers.get(_AFTER.lower())
                if written is not None:
                    self._after = _merged(self._after, written)
                yield response
        except DataFolderError as error:
            raise Unreachable(str(error)) from error
        except InvalidAddress as error:
            raise Unreachable(
                f"{location.url!r} is no address of a server: give one such as"
                " http://127.0.0.1:8080 (--url, RUNG_URL)"
            ) from error

    async def _begun(self, asking: Awaitable[Answer], location: Location) -> Answer:
        """Return an answer once its headers are there, as long as the server is alive.

        Raises:
            TimeoutError: it does not answer a request for its health either.
        """
        try:
            async with asyncio.timeout(None) as alive:
                watching = asyncio.create_task(self._watch(location, alive))
                try:
                    return await asking
                finally:
                    watching.cancel()
        except TimeoutError as error:
            if not alive.expired():
                raise
            raise TimeoutError(
                "it takes connections and answers nothing: its process is stopped, or hangs"
            ) from error

    async def _watch(self, location: Location, alive: asyncio.Timeout) -> None:
        """Let a time-out expire once the server does not answer a request for its health."""
        while True:
            await asyncio.sleep(_QUIET_S)
            if not await self._is_alive(location):
                alive.reschedule(asyncio.get_running_loop().time())
                return

    async def _is_alive(self, location: Location) -> bool:
        """Return whether the server answers at all."""
        request = Request("GET", location.url.rstrip("/") + _HEALTH)
        try:
            async with (
                asyncio.timeout(_HEALTH_S),
                await self._pool(location.data).send(request, silence_s=_HEALTH_S),
            ):
                return True
        except _TRANSIENT:
            return False

    def _pool(self, data: Path | None) -> Pool:
        """Return the connections to a data folder's socket, or to URLs."""
        if data in self._pools:
            return self._pools[data]
        if data is None:
            made = Pool()
        else:
            check_owner(data)
            folder = self._opened.enter_context(short_path(data))
            made = Pool(f"{folder}/{SOCKET}", check_peer)
        self._pools[data] = made
        return made

    def _where(self) -> Location:
        if self._location is None:
            self._location = self._locate()
        return self._location

    def _patience(self) -> float:
        """Return how long to retry while connections break."""
        return self._patience_s if self._answered else min(self._patience_s, _UNMET_S)

    def _moved(self) -> bool:
        """Locate the server again; return whether its location or token has changed."""
        before, self._location = self._location, None
        try:
            return self._where() != before
        except Unreachable:
            return True  # it may be starting; the next attempt shows it

    def _unreachable(self, error: Exception) -> Unreachable:
        where = self._location.url if self._location else "the server"
        why = str(error) or type(error).__name__
        return Unreachable(
            f"{where} does not answer ({why}): is `rung up` running there? `rung up` starts it,"
            " --url or RUNG_URL names another"
        )


class _Request(NamedTuple):
    method: str
    path: str
    query: Query = MappingProxyType({})
    body: bytes | None = None
    headers: Mapping[str, str] = MappingProxyType({})


class _Refused(Exception):
    """An answer with an error in it."""

    def __init__(self, status: int, body: bytes, retry_after: str | None) -> None:
        self.status = status
        self.body = body
        self.retry_after = retry_after
        super().__init__(status)


def _merged(known: str | None, written: str) -> str:
    """Return the token of the later positions of two; of two ledgers, the newer token.

    Of concurrent writes neither token includes the other's positions.
    """
    if known is None:
        return written
    try:
        (before, first), (ledger_id, second) = _read_after(known), _read_after(written)
    except ValueError:  # of msgspec and of base64
        return written
    if before != ledger_id:
        return written
    last: dict[tuple[str, int], int] = {}
    for topic, partition, position in first + second:
        last[topic, partition] = max(position, last.get((topic, partition), position))
    rows = [(*place, position) for place, position in sorted(last.items())]
    return base64.urlsafe_b64encode(msgspec.json.encode((ledger_id, rows))).decode().rstrip("=")


def _read_after(token: str) -> tuple[str, list[tuple[str, int, int]]]:
    padded = token + "=" * (-len(token) % 4)
    return _after_decoder.decode(base64.urlsafe_b64decode(padded))


def _least_s(error: BaseException) -> float:
    """Return the server's `Retry-After`, at most the longest back-off; with 429 all of it."""
    if not isinstance(error, _Refused):
        return 0.0
    most_s = _LIMITED_S if error.status == _LIMITED else _BACKOFF.most_s
    try:
        return min(float(error.retry_after or 0), most_s)
    except ValueError:
        return 0.0
