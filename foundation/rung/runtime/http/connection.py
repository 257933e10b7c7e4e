"""Limits on the connections of an HTTP server: maximum numbers and time-outs.

aiohttp closes neither a connection whose request never becomes complete nor one whose client never
reads, and asyncio logs a traceback for each connection that it cannot accept. `Connections`
accepts connections itself, from any listening socket, and a `Connection` is aiohttp's protocol
that also measures the client:

    head      from the first byte of a request to its last header: `head_s` in all
    body      at least `progress_bytes` in each `progress_s`, while the server reads
    response  the same, while there is something unsent; the time of handlers and of the ledger
              does not count, nor does that of an idle stream
    idle      between two requests: `idle_s`

There is a maximum for all connections and for those of one address. Where it is reached, the
connection that has waited longest for a request is closed for the new one, or else one of a client
without a token that does not read or send. Only when all are being served is a new one refused,
with 503.

Time in which the server itself was suspended or without a processor does not count.

All of it precedes authentication. Cut and refused connections are counted in
`rung_http_connections_cut_total`, and logged at most once a minute.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
import yarl
from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.typedefs import Handler
from aiohttp.web import RequestPayloadError

from rung.api import ProblemDocument
from rung.events import RungError
from rung.runtime.http.limits import Limits, raise_open_files
from rung.runtime.metrics import catalog

AUTHENTICATED: Final = web.RequestKey("authenticated", bool)
"""Set on a request with a valid token: it is never cut in favor of another connection."""
LOG_S: Final = 60.0
"""Seconds between two log lines about connections."""

_ACCEPTS: Final = 64
"""Connections accepted at a time, so that others are served in between."""
_BACKLOG: Final = 1024
_RETRY_S: Final = 0.1
_SWEEP_S: Final = 1.0
_HEAD_END: Final = b"\r\n\r\n"
_PROBLEM: Final = "application/problem+json"

_log = structlog.get_logger()


class BodyTooSlow(RungError, TimeoutError):
    """The body of a request did not arrive in time."""


class Connection(web.RequestHandler):
    """One connection: aiohttp's protocol, which also measures the client."""

    def __init__(self, owner: "Connections", address: str, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, logger=owner.logger, access_log=None)  # type: ignore[arg-type]
        self.address: Final = address
        self.request: web.BaseRequest | None = None
        self._owner = owner
        self._limits = owner.limits
        self._now = owner.now
        self._since = self._now()
        """When the wait for a request, or the present period of its body, began."""
        self._first = True
        self._head_bytes = 0
        """Received of a head that is not complete, or ahead while a request is answered."""
        self._head_ended = False
        self._tail = b""
        self._body_bytes = 0
        self._body_failed = False
        self._trusted = False
        """Whether the last answered request had a valid token."""
        self._unread: web.BaseRequest | None = None
        """An answered request whose body is still read, and discarded."""
        self._unsent = 0
        self._sent = 0
        self._sending_since: float | None = None

    # What asyncio calls --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        super().connection_made(transport)
        if (
            self not in self._owner and self.transport is not None
        ):  # evicted before it was accepted
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Count what is received, and pass it on unless it is too much."""
        if not self._too_much(data):
            super().data_received(data)

    def resume_writing(self) -> None:
        """Note that the client has read nearly everything."""
        self._sending_since = None
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._owner.forget(self)
        super().connection_lost(exc)

    # What the server calls -----------------------------------------------------------------------

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats what was sent
    ) -> web.StreamResponse:
        """Return a problem document in answer to what is no valid request, without its text."""
        # aiohttp repeats the header in its own refusal, which fails where it is no text.
        unexpected = isinstance(exc, UnicodeEncodeError) and hdrs.EXPECT in request.headers
        if not unexpected:
            self.log_exception("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        if unexpected:
            status, detail = 417, "the header Expect must be `100-continue`, or absent"
        elif isinstance(exc, LineTooLong):
            detail = f"a line or a header has more than {self.max_line_size:,} bytes"
        elif isinstance(exc, HttpProcessingError):
            detail = "this is no request of HTTP/1.1"
        else:
            detail = "something went wrong here; the server's log says more"
        response = web.Response(
            status=status,
            body=_problem(status, detail),
            headers={
                "Content-Type": _PROBLEM,
                "Server": "rung",
                "X-Content-Type-Options": "nosniff",
            },
        )
        response.force_close()
        return response

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a request's head is complete and its handler runs."""
        self.request, self._unread = request, None
        self._first = self._head_ended = self._body_failed = False
        self._head_bytes = self._body_bytes = 0
        self._tail = b""
        self._since = self._now()

    def end(self) -> None:
        """Note that a request's handler has returned; some of the answer may be unsent."""
        if self.request is not None:
            self._trusted = self.request.get(AUTHENTICATED, False)
            self._unread = None if self.request.content.is_eof() else self.request
        self.request = None
        self._since = self._now()
        self._owner.waits(self)

    # Limits --------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether there is neither a request to be answered nor anything unsent."""
        return self.request is None and not self._unsent_now()

    @property
    def held_up(self) -> bool:
        """Whether an answer waits for a client without a token."""
        if self.request is None:
            return not self._trusted
        if self.request.get(AUTHENTICATED):
            return False
        return bool(self._unsent_now()) or not self.request.content.is_eof()

    @property
    def _reads_on(self) -> bool:
        """Whether the rest of an answered request's body is still read."""
        return self._unread is not None and not self._unread.content.is_eof()

    def check(self, now: float) -> None:
        """Cut the connection if its client is too slow."""
        transport = self.transport
        if transport is None:
            return
        if self._does_not_read(now):
            self.cut("response-timeout")
        elif transport.is_closing():
            return
        elif self.request is not None:
            self._check_body(self.request, transport, now)
        elif self._unsent:
            self._since = now
        elif self._first or self._head_bytes or self._reads_on:
            if now - self._since > self._limits.head_s:
                answer = _TIMEOUT if self._head_bytes else b""
                self.cut("head-timeout" if self._head_bytes else "no-request", answer)
        elif now - self._since > self._limits.idle_s:
            self.cut(None)

    def cut(self, reason: str | None, answer: bytes = b"") -> None:
        """Close the connection, and count it under a reason."""
        if reason is not None:
            self._owner.count(reason, self.address)
        self._owner.forget(self)
        if self.transport is None:
            return
        if answer and not self._unsent_now():
            self.transport.write(answer)
            if not self._unsent_now():
                self.transport.close()
                return
        self.transport.abort()

    def _unsent_now(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def _too_much(self, data: bytes) -> bool:
        """Count bytes of a body, a head or of requests sent ahead; return whether it was cut."""
        if self.request is not None:
            if not self.request.content.is_eof():
                self._body_bytes += len(data)
                return False
        elif self._reads_on or self._head_ended:
            return False
        elif not self._head_bytes and not self._first:
            self._since = self._now()
        self._head_bytes += len(data)
        if self.request is None:
            self._head_ended = _HEAD_END in self._tail + data
            self._tail = data[-3:]
        if self._head_ended or self._head_bytes <= self._limits.head_bytes:
            return False
        self.cut("head-too-large", _TOO_LARGE if self.request is None else b"")
        return True

    def _does_not_read(self, now: float) -> bool:
        """Return whether the client has read too little for too long."""
        before, self._unsent = self._unsent, self._unsent_now()
        if not self._unsent:
            self._sending_since = None
            return False
        if self._sending_since is None:
            self._sending_since, self._sent = now, 0
            return False
        self._sent += max(0, before - self._unsent)
        if now - self._sending_since <= self._limits.progress_s:
            return False
        moved, self._sending_since, self._sent = self._sent, now, 0
        return moved < self._limits.progress_bytes

    def _check_body(
        self, request: web.BaseRequest, transport: asyncio.Transport, now: float
    ) -> None:
        """Fail a body that is too slow; cut the connection if the handler goes on reading."""
        if request.content.is_eof():
            return
        if not transport.is_reading():  # the server is slow, not the client
            self._since, self._body_bytes = now, 0
        elif now - self._since > self._limits.progress_s:
            arrived, self._since, self._body_bytes = self._body_bytes, now, 0
            if arrived >= self._limits.progress_bytes:
                return
            if self._body_failed:
                self.cut("body-timeout")
                return
            self._body_failed = True
            self._owner.count("body-timeout", self.address)
            request.content.set_exception(
                BodyTooSlow(
                    f"of the body {arrived:,} bytes came in {self._limits.progress_s:g} s: send "
                    f"at least {self._limits.progress_bytes:,} bytes in that time"
                )
            )


class Connections:
    """The connections of one server, from all of its listening sockets.

    Attributes:
        limits: as far as the open files of the process allow.
        logger: for the server: counts malformed requests, whose text may hold secrets.
    """

    def __init__(self, limits: Limits | None = None, *, port: str) -> None:
        """Prepare a server; `port` is its name in log lines and metrics: `http`, `probe`."""
        self.limits: Final = (limits or Limits()).within(raise_open_files())
        # Not a named logger, so that it is removed with the server.
        self.logger: Final = logging.Logger("rung.http", logging.WARNING)  # noqa: LOG001
        self.logger.addHandler(_Failures(self))
        self._port = port
        self._all: dict[Connection, None] = {}
        """Sorted by the time since their last request, longest first."""
        self._of_address: dict[str, dict[Connection, None]] = {}
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._server: web.Server | None = None
        self._cut: Counter[str] = Counter()
        self._cut_last = ""
        self._logged_at = float("-inf")
        self._sweeping: asyncio.TimerHandle | None = None
        self._swept_s: float | None = None
        """When the connections were checked last."""
        self._stalled_s = 0.0
        """For how long the server itself has been suspended."""

    def now(self) -> float:
        """Return the time without that in which the server was suspended."""
        return asyncio.get_running_loop().time() - self._stalled_s

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._all

    def __len__(self) -> int:
        return len(self._all)

    @contextlib.asynccontextmanager
    async def serve(
        self, app: web.Application, listeners: Iterable[socket.socket], *, shutdown_s: float
    ) -> AsyncIterator[None]:
        """Serve an application on listening sockets while the context lasts, then close them.

        Requests that are being answered at the end have `shutdown_s`.
        """
        app.middlewares.insert(0, _watch)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=shutdown_s)
        await runner.setup()
        assert runner.server is not None
        runner.server.request_factory = _with_url(runner.server.request_factory)
        self._server = runner.server
        try:
            with self._listening(listeners):
                yield
        finally:
            await runner.cleanup()

    @contextlib.contextmanager
    def _listening(self, listeners: Iterable[socket.socket]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        self._listeners = list(listeners)
        for listener in self._listeners:
            listener.setblocking(False)  # noqa: FBT003 - how sockets take it
            listener.listen(_BACKLOG)
            loop.add_reader(listener, self._accept, listener)
        self._sweep()
        try:
            with catalog.HTTP_CONNECTIONS.read_from(lambda: {(self._port,): len(self._all)}):
                yield
        finally:
            for listener in self._listeners:
                loop.remove_reader(listener)
                listener.close()
            self._listeners = []
            if self._sweeping is not None:
                self._sweeping.cancel()
            self._report(force=True)

    def waits(self, connection: Connection) -> None:
        """Note that a connection begins to wait for a request: it is the last to be evicted."""
        for connections in (self._all, self._of_address.get(connection.address, {})):
            if connection in connections:
                del connections[connection]
                connections[connection] = None

    def forget(self, connection: Connection) -> None:
        """Remove a connection."""
        self._all.pop(connection, None)
        mates = self._of_address.get(connection.address, {})
        mates.pop(connection, None)
        if not mates:
            self._of_address.pop(connection.address, None)

    def count(self, reason: str, address: str = "") -> None:
        """Count a connection that was cut or refused; a log line follows within a minute."""
        catalog.HTTP_CONNECTIONS_CUT.labels(self._port, reason).inc()
        self._cut[reason] += 1
        self._cut_last = address or self._cut_last

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file is left, or no memory
                self.count("accept-failed")
                if not self._evict(self._all):
                    self._pause(listener)
                return
            self._admit(accepted, _address_of(peer))

    def _pause(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)

        def again() -> None:
            if listener in self._listeners:
                loop.add_reader(listener, self._accept, listener)

        loop.call_later(_RETRY_S, again)

    def _admit(self, accepted: socket.socket, address: str) -> None:
        mates = self._of_address.get(address, {})
        if len(mates) >= self.limits.connections_per_address and not self._evict(mates):
            self._refuse(accepted, "address-limit", address)
            return
        if len(self._all) >= self.limits.connections and not self._evict(self._all):
            self._refuse(accepted, "limit", address)
            return
        assert self._server is not None
        connection = Connection(self, address, self._server)
        self._all[connection] = None
        self._of_address.setdefault(address, {})[connection] = None
        accepting = asyncio.create_task(self._connect(connection, accepted))
        self._accepting.add(accepting)
        accepting.add_done_callback(self._accepting.discard)

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        accepted.setblocking(False)  # noqa: FBT003 - how sockets take it
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:
            self.forget(connection)
            self.count("accept-failed", connection.address)
            accepted.close()

    def _evict(self, connections: dict[Connection, None]) -> bool:
        """Cut the connection that waits longest; return whether there is one."""
        found = next((it for it in connections if it.waits), None)
        if found is None:
            found = next((it for it in connections if it.held_up), None)
        if found is None:
            return False
        found.cut("evicted")
        return True

    def _refuse(self, accepted: socket.socket, reason: str, address: str) -> None:
        self.count(reason, address)
        with accepted, contextlib.suppress(OSError):
            accepted.setblocking(False)  # noqa: FBT003 - how sockets take it
            accepted.send(_BUSY)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        limits, now_s = self.limits, loop.time()
        often = min(_SWEEP_S, limits.head_s / 4, limits.idle_s / 4, limits.progress_s / 4)
        if self._swept_s is not None:  # late by the time in which it was suspended
            self._stalled_s += max(0.0, now_s - self._swept_s - often)
        self._swept_s, now = now_s, self.now()
        self._sweeping = loop.call_later(often, self._sweep)
        for connection in list(self._all):
            connection.check(now)
        self._report()

    def _report(self, *, force: bool = False) -> None:
        """Log what was cut, at most once a minute."""
        now = asyncio.get_running_loop().time()
        if self._cut and (force or now - self._logged_at >= LOG_S):
            counts = dict(sorted(self._cut.items()))
            last = self._cut_last
            _log.warning("connections cut", port=self._port, counts=counts, last_address=last)
            self._logged_at = now
            self._cut.clear()


def _with_url(make: Callable[..., web.BaseRequest]) -> Callable[..., web.BaseRequest]:
    """Return what makes requests of messages, also of one without a URL.

    aiohttp's parser returns such a message where the target of `CONNECT` is empty.
    """

    def make_request(message: RawRequestMessage, *others: Any) -> web.BaseRequest:
        if message.url is None:
            message = message._replace(url=yarl.URL())
        return make(message, *others)

    return make_request


@web.middleware
async def _watch(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note when requests begin and end, as the outermost middleware."""
    connection = request.protocol
    assert isinstance(connection, Connection), connection
    connection.begin(request)
    try:
        return await handler(request)
    finally:
        connection.end()


class _Failures(logging.Handler):
    """Handles what aiohttp's server logs of single requests.

    A request that cannot be parsed is counted. Its text, which may hold a token, is not logged.
    """

    def __init__(self, owner: Connections) -> None:
        super().__init__()
        self._owner = owner

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (HttpProcessingError, RequestPayloadError)):
            self._owner.count("malformed")
        elif isinstance(error, (ConnectionError, TimeoutError)):
            self._owner.count("disconnected")
        else:
            _log.error("request failed", reason=record.getMessage(), exc_info=error)


def _address_of(peer: object) -> str:
    """Return the address of one client: an IPv4 address, a /64 of IPv6, or `unix`."""
    if not isinstance(peer, tuple) or not peer:
        return "unix"
    host = str(peer[0]).partition("%")[0]
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def _problem(status: int, detail: str) -> bytes:
    phrase = HTTPStatus(status).phrase
    kind = phrase.lower().replace(" ", "-")
    return msgspec.json.encode(
        ProblemDocument(
            type=f"urn:rung:problem:{kind}",
            title=phrase,
            status=status,
            detail=detail,
            instance="/",
        )
    )


def _refusal(status: int, detail: str) -> bytes:
    body = _problem(status, detail)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {_PROBLEM}\r\n"
        f"Content-Length: {len(body)}\r\nServer: rung\r\nX-Content-Type-Options: nosniff\r\n"
        "Retry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


_TIMEOUT: Final = _refusal(408, "the request's headers did not come in time")
_TOO_LARGE: Final = _refusal(431, "the request's headers are too large in all")
_BUSY: Final = _refusal(503, "there are too many connections; try again later")
