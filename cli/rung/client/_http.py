"""HTTP/1.1 over asyncio's streams; `h11` parses.

Importing `aiohttp` would take most of the time of a command. What a client of one gateway needs is
here: kept connections over TCP, TLS or a Unix socket, bodies as a whole or piece by piece, and
time-outs for silence. Redirections are not followed, cookies are not kept, and no proxy is used.
TLS trusts the certificates of the system, or of `SSL_CERT_FILE`.

Exception
└── HttpError            the connection broke, or the answer is no HTTP
    ├── ConnectionFailed no connection can be made
    └── InvalidAddress   an URL is no address of a server
"""

import asyncio
import base64
import contextlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import h11
from aiohappyeyeballs import start_connection

_PORTS: Final = {"http": 80, "https": 443}
_CONNECT_S: Final = 5.0
_IDLE_S: Final = 15.0
"""A connection that was not used for longer is not used again: its server may be closing it."""
_AT_ONCE: Final = 100
"""Connections of one pool; further requests wait for one."""
_READ: Final = 1 << 20
"""Bytes read at once."""
_HEAD_MAX: Final = 1 << 16
"""Bytes of an answer's headers."""
_EYEBALLS_S: Final = 0.25
"""How long to wait for one address of a host before the next one is tried beside it."""


class HttpError(Exception):
    """The connection broke, or the answer is no HTTP."""


class ConnectionFailed(HttpError):
    """No connection can be made; the message says why, without the address."""


class InvalidAddress(HttpError):
    """An URL is no address of a server."""


class Address(NamedTuple):
    """The parts of an URL that name a server."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The host and, unless it is the scheme's own, the port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


class Request(NamedTuple):
    """A request; sent as it is, so the URL has to be encoded."""

    method: str
    url: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes | None = None


class Part(NamedTuple):
    """One part of a form."""

    name: str
    filename: str
    content_type: str
    data: bytes


def address_of(url: str) -> Address:
    """Return the server that an URL names.

    Raises:
        InvalidAddress: it names none.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna" if not url.isascii() else "ascii").decode()
        port = parts.port
    except ValueError as error:
        raise InvalidAddress(url) from error
    if parts.scheme not in _PORTS or not host:
        raise InvalidAddress(url)
    return Address(parts.scheme, host, port or _PORTS[parts.scheme], parts.path)


def form(*parts: Part) -> tuple[bytes, str]:
    """Return a form as the body of a request, and its content type."""
    boundary = secrets.token_hex(16)
    pieces: list[bytes] = []
    for part in parts:
        head = (
            f"--{boundary}\r\n"
            f'Content-Disposition: form-data; name="{part.name}"; filename="{part.filename}"\r\n'
            f"Content-Type: {part.content_type}\r\n\r\n"
        )
        pieces += [head.encode(), part.data, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode())
    return b"".join(pieces), f"multipart/form-data; boundary={boundary}"


class Answer:
    """An answer whose headers have been received; use it with `async with`.

    Attributes:
        status: HTTP's status code.
        headers: by their names in lower case.
    """

    def __init__(self, pool: "Pool", connection: "_Connection", head: h11.Response) -> None:
        self.status = head.status_code
        self.headers: Final = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers
        }
        self._pool = pool
        self._connection = connection
        self._ended = False

    async def __aenter__(self) -> Self:
        """Return the answer."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep the connection for another request if the body was read to its end; else close."""
        self._pool.give_back(self._connection)

    async def read(self) -> bytes:
        """Return the rest of the body.

        Raises:
            HttpError: the connection broke.
            TimeoutError: nothing was received for too long.
        """
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it is received, in pieces of a megabyte at most.

        Raises:
            HttpError: the connection broke.
            TimeoutError: nothing was received for too long.
        """
        while not self._ended:
            event = await self._connection.next_event()
            if isinstance(event, h11.Data):
                yield event.data
            else:
                self._ended = True


class Pool:
    """Connections to servers, kept for further requests."""

    def __init__(
        self, path: str | None = None, check: Callable[[socket.socket], None] | None = None
    ) -> None:
        """Prepare it; nothing is connected yet.

        Args:
            path: of the Unix socket to connect to, whatever server an URL names; None: by TCP.
            check: called with each new connection's socket before anything is sent; it may raise.
        """
        self._path = path
        self._check = check
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._idle: dict[Address, list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def send(self, request: Request, *, silence_s: float) -> Answer:
        """Send a request; return its answer once its headers have been received.

        Args:
            request: a GET is sent again if the server has just closed a kept connection.
            silence_s: how long nothing may be sent or received.

        Raises:
            ConnectionFailed: no connection can be made.
            InvalidAddress: its URL is no address of a server.
            HttpError: the connection broke.
            TimeoutError: nothing was received for too long.
        """
        address = address_of(request.url)._replace(path="")
        await self._places.acquire()
        connection: _Connection | None = None
        try:
            connection = self._kept(address)
            if connection is not None and request.method == "GET":
                with contextlib.suppress(HttpError):
                    return Answer(self, connection, await connection.ask(request, silence_s))
                self._drop(connection)
                connection = None
            if connection is None:
                connection = await self._connected(address)
            return Answer(self, connection, await connection.ask(request, silence_s))
        except BaseException:
            if connection is not None:
                self._drop(connection)
            self._places.release()
            raise

    def give_back(self, connection: "_Connection") -> None:
        """Keep a connection for another request, or close it."""
        if connection in self._open and connection.renew():
            self._idle.setdefault(connection.address, []).append(connection)
        else:
            self._drop(connection)
        self._places.release()

    async def close(self) -> None:
        """Close all connections, and wait until those are that were given up before."""
        for connection in list(self._open):
            self._drop(connection)
        self._idle.clear()
        await asyncio.gather(*self._closing)

    def _kept(self, address: Address) -> "_Connection | None":
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            self._drop(connection)
        return None

    def _drop(self, connection: "_Connection") -> None:
        self._open.discard(connection)
        connection.abort()
        closing = asyncio.create_task(connection.closed())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _connected(self, address: Address) -> "_Connection":
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await self._connect(address)
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {_CONNECT_S:g} s") from error
        except OSError as error:
            raise ConnectionFailed(error.strerror or str(error)) from error
        connection = _Connection(address, reader, writer)
        if self._check is not None:
            try:
                self._check(writer.get_extra_info("socket"))
            except BaseException:
                self._drop(connection)
                raise
        self._open.add(connection)
        return connection

    async def _connect(
        self, address: Address
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._path is not None:
            return await asyncio.open_unix_connection(self._path, limit=_READ)
        # asyncio's own race leaves a socket open where it is cancelled.
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
        connected = await start_connection(found, happy_eyeballs_delay=_EYEBALLS_S, interleave=1)
        secure = address.scheme == "https"
        try:
            return await asyncio.open_connection(
                sock=connected,
                ssl=True if secure else None,
                server_hostname=address.host if secure else None,
                limit=_READ,
            )
        except BaseException:
            connected.close()
            raise


class _Connection:
    """A connection, and what of the present answer has been received."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_MAX)
        self._silence_s = 0.0
        self._used = time.monotonic()

    async def ask(self, request: Request, silence_s: float) -> h11.Response:
        """Send a request and return the beginning of its answer."""
        self._silence_s = silence_s
        headers = [("Host", self.address.authority), ("Accept", "*/*"), *request.headers.items()]
        parts = urlsplit(request.url)
        if parts.username and "Authorization" not in request.headers:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers.append(("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
        if request.body is not None or request.method == "POST":
            headers.append(("Content-Length", str(len(request.body or b""))))
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            head = h11.Request(method=request.method, target=target, headers=headers)
        except h11.LocalProtocolError as error:
            raise InvalidAddress(request.url) from error
        self._write(head)
        if request.body:
            self._write(h11.Data(data=request.body))
        self._write(h11.EndOfMessage())
        while not isinstance(event := await self.next_event(), h11.Response):
            pass  # 100 Continue and its kin
        return event

    async def next_event(self) -> h11.Event:
        """Return what is received next.

        Raises:
            HttpError: the connection broke.
            TimeoutError: nothing was received for too long.
        """
        try:
            while (event := self._parser.next_event()) is h11.NEED_DATA:
                self._parser.receive_data(await self._receive())
        except h11.RemoteProtocolError as error:
            raise HttpError(str(error)) from error
        assert isinstance(event, h11.Event), event
        return event

    def renew(self) -> bool:
        """Prepare for another request; return whether that is possible."""
        if self._parser.our_state is not h11.DONE or self._parser.their_state is not h11.DONE:
            return False
        self._parser.start_next_cycle()
        self._used = time.monotonic()
        return self.is_usable()

    def is_usable(self) -> bool:
        """Return whether the server has not closed it, as far as is known."""
        recent = time.monotonic() < self._used + _IDLE_S
        return recent and not self._reader.at_eof() and not self._writer.is_closing()

    def abort(self) -> None:
        """Close it without waiting."""
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until an aborted connection is closed."""
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _write(self, event: h11.Event) -> None:
        data = self._parser.send(event)
        assert data is not None
        self._writer.write(data)

    async def _receive(self) -> bytes:
        transport = self._writer.transport
        while True:
            unsent = transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(self._silence_s):
                    return await self._reader.read(_READ)
            except TimeoutError as error:
                if transport.get_write_buffer_size() >= unsent:  # nor was anything sent
                    raise TimeoutError(f"silent for {self._silence_s:g} s") from error
            except OSError as error:
                raise HttpError(error.strerror or str(error)) from error
