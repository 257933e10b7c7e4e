"""Connections: real sockets to a real server with short times."""

import asyncio
import contextlib
import io
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web

from rung.runtime.http.connection import AUTHENTICATED, BodyTooSlow, Connections
from rung.runtime.http.limits import OPEN_FILES, Limits, raise_open_files

SECRET = "the-token-of-a-client"  # noqa: S105 - not a secret
HALF = b"GET /quick HTTP/1.1\r\nHost: x\r\nAuthorization: Bea"
QUICK = b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT = Limits(
    connections=8,
    connections_per_address=4,
    head_s=0.4,
    idle_s=0.4,
    progress_s=0.4,
    progress_bytes=4096,
)
LARGE = 64 << 20
"""More than the kernel takes for a client that does not read."""


class Server:
    """One with a route of each kind."""

    def __init__(self, limits: Limits) -> None:
        self.connections = Connections(limits, port="http")
        self.received = 0
        self.failed: BaseException | None = None
        self.ended = asyncio.Event()
        self.port = 0

    async def quick(self, request: web.Request) -> web.Response:
        """Answer at once."""
        return web.Response(text="ok")

    async def take(self, request: web.Request) -> web.Response:
        """Read the body."""
        try:
            async for chunk in request.content.iter_any():
                self.received += len(chunk)
        except BodyTooSlow as error:
            self.failed = error
            return web.Response(status=408, text=str(error))
        return web.Response(text=str(self.received))

    async def give(self, request: web.Request) -> web.StreamResponse:
        """Answer with much."""
        if "token" in request.query:
            request[AUTHENTICATED] = True
        response = web.StreamResponse(headers={"Content-Length": str(LARGE)})
        await response.prepare(request)
        try:
            for _ in range(LARGE >> 20):
                await response.write(bytes(1 << 20))
        finally:
            self.ended.set()
        return response

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Say something, be quiet for long, and say something."""
        if "token" in request.query:
            request[AUTHENTICATED] = True
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await asyncio.sleep(1.5)
        await response.write(b"last")
        return response


@contextlib.asynccontextmanager
async def serving(limits: Limits, listener: socket.socket) -> AsyncIterator[Server]:
    """Run a server while the context lasts."""
    server = Server(limits)
    app = web.Application()
    app.router.add_get("/quick", server.quick)
    app.router.add_post("/take", server.take)
    app.router.add_get("/give", server.give)
    app.router.add_get("/stream", server.stream)
    async with server.connections.serve(app, [listener], shutdown_s=0.1):
        if listener.family != socket.AF_UNIX:
            server.port = listener.getsockname()[1]
        yield server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Return one with short times, which listens on every address of the loopback interface."""
    async with serving(SHORT, socket.create_server(("", 0))) as server:
        yield server


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connect(server: Server, data: bytes = b"", address: str = "127.0.0.1") -> Pair:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, local_addr=(address, 0), limit=1 << 20
    )
    writer.write(data)
    await writer.drain()
    return reader, writer


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing says when it changes
        await asyncio.sleep(0.01)


async def _rest(pair: Pair) -> bytes:
    """Return what comes until the server closes the connection."""
    reader, writer = pair
    found = b""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                found += data
    writer.close()
    return found


async def _asks(server: Server, address: str = "127.0.0.1") -> bytes:
    """Return the answer to a client's own request."""
    pair = await _connect(
        server, QUICK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), address
    )
    return await _rest(pair)


async def test_half_a_request_is_ended(server: Server) -> None:
    """Whether it stands still or trickles in: after the time for heads, with an answer."""
    pair = await _connect(server, HALF)
    assert (await _rest(pair)).startswith(b"HTTP/1.1 408 ")

    pair = await _connect(server, HALF)

    async def trickle() -> None:
        while True:
            pair[1].write(b"x")
            await asyncio.sleep(0.05)

    writing = asyncio.create_task(trickle())
    await _rest(pair)
    writing.cancel()


async def test_a_silent_connection_is_ended(server: Server) -> None:
    """Before the first request and behind one; the next of one that speaks is answered."""
    assert await _rest(await _connect(server)) == b""

    reader, writer = await _connect(server, QUICK)
    assert await reader.readuntil(b"ok")
    writer.write(QUICK)
    assert await reader.readuntil(b"ok")
    assert await _rest((reader, writer)) == b""


async def test_a_body_that_stops_is_ended(server: Server) -> None:
    """Its handler gets the reason, and the client an answer."""
    head = b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    answer = await _rest(await _connect(server, head + b"abc"))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert isinstance(server.failed, BodyTooSlow)
    assert server.received == 3


async def test_a_body_that_goes_on_is_taken(server: Server) -> None:
    """However long it takes in all."""
    head = b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 40960\r\n\r\n"
    reader, writer = await _connect(server, head)
    for _ in range(20):
        writer.write(bytes(2048))
        await writer.drain()
        await asyncio.sleep(0.1)
    assert b"200 OK" in await reader.readuntil(b"40960")
    writer.close()


async def test_a_reader_that_never_reads_is_ended(server: Server) -> None:
    """The handler does not wait for it for ever."""
    reader, writer = await _connect(server, b"GET /give HTTP/1.1\r\nHost: x\r\n\r\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(10):
        await server.ended.wait()
        await _until(lambda: not len(server.connections))
    writer.transport.abort()
    del reader


async def test_a_slow_reader_gets_everything(server: Server) -> None:
    """As long as it reads."""
    reader, writer = await _connect(server, b"GET /give HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    found = 0
    while found < LARGE:
        data = await reader.read(2 << 20)
        assert data, (head, found)
        found += len(data)
        await asyncio.sleep(0.02)
    writer.close()


async def test_a_server_that_stood_still_cuts_nobody(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that could not be read from or written to meanwhile has its time afterwards."""
    head = b"POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
    body = await _connect(server, head + b"ab")
    answer = await _connect(server, b"GET /give HTTP/1.1\r\nHost: x\r\n\r\n")
    await answer[0].readuntil(b"\r\n\r\n")
    half = await _connect(server, HALF)
    silent = await _connect(server)
    await _until(lambda: server.received == 2 and len(server.connections) == 4)
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + 3600)  # as after SIGSTOP and SIGCONT
    swept = server.connections._sweeping
    await _until(lambda: server.connections._sweeping is not swept)
    assert len(server.connections) == 4

    async with asyncio.timeout(10):
        body[1].write(b"cd")
        half[1].write(b"rer x\r\n\r\n")
        silent[1].write(QUICK)
        assert b"200 OK" in await body[0].readuntil(b"4")
        assert b"200 OK" in await half[0].readuntil(b"ok")
        assert b"200 OK" in await silent[0].readuntil(b"ok")
        await answer[0].readexactly(8 << 20)  # more than was on its way
    for _, writer in (body, half, silent):
        writer.close()
    answer[1].transport.abort()


async def test_a_quiet_stream_goes_on(server: Server) -> None:
    """What has nothing to say is not cut."""
    reader, writer = await _connect(server, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await reader.readuntil(b"first")
    assert await reader.readuntil(b"last")
    writer.close()


async def test_half_requests_give_way(server: Server) -> None:
    """An address has its share and a client still gets its answer; so does another address."""
    pairs = [await _connect(server, HALF) for _ in range(12)]
    assert b"200 OK" in await _asks(server)
    assert len(server.connections) <= SHORT.connections_per_address
    assert b"200 OK" in await _asks(server, "127.0.0.2")
    for _, writer in pairs:
        writer.close()


async def test_many_addresses_give_way(server: Server) -> None:
    """All connections together are limited, too."""
    pairs = [await _connect(server, HALF, f"127.0.0.{number}") for number in range(2, 40)]
    assert len(server.connections) <= SHORT.connections
    assert b"200 OK" in await _asks(server)
    for _, writer in pairs:
        writer.close()


async def test_what_is_served_does_not_give_way(server: Server) -> None:
    """Clients with a token keep their streams; one more of the address is refused."""
    get = b"GET /stream?token=1 HTTP/1.1\r\nHost: x\r\n\r\n"
    streams = [await _connect(server, get) for _ in range(SHORT.connections_per_address)]
    for reader, _ in streams:
        await reader.readuntil(b"first")

    assert (await _asks(server)).startswith(b"HTTP/1.1 503 ")
    assert b"200 OK" in await _asks(server, "127.0.0.2")
    for reader, writer in streams:
        assert await reader.readuntil(b"last")
        writer.close()


async def test_readers_without_a_token_that_do_not_read_give_way(server: Server) -> None:
    """An answer that nobody takes keeps no place."""
    get = b"GET /give HTTP/1.1\r\nHost: x\r\n\r\n"
    pairs = [await _connect(server, get) for _ in range(SHORT.connections_per_address)]
    for reader, writer in pairs:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
    assert b"200 OK" in await _asks(server)
    for _, writer in pairs:
        writer.transport.abort()


async def test_large_heads_are_refused(server: Server) -> None:
    """Also where no header is too large by itself, and requests sent ahead of answers."""
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 4000) for number in range(30))
    pair = await _connect(server, b"GET /quick HTTP/1.1\r\nHost: x\r\n" + lines)
    answer = await _rest(pair)
    assert answer.split(b" ", 2)[1] in {b"431", b"400"}, answer

    reader, writer = await _connect(server, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"first")
    writer.write(b"GET /quick HTTP/1.1\r\nHost: x\r\n" + lines)
    assert b"last" not in await _rest((reader, writer))


async def test_an_expectation_that_is_no_text(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused as any other that cannot be met, and is no fault of the server's."""
    pair = await _connect(server, b"GET /quick HTTP/1.1\r\nHost: x\r\nExpect: a\xf5b\r\n\r\n")
    answer = await _rest(pair)
    assert answer.startswith(b"HTTP/1.1 417 ")
    assert b"must be `100-continue`" in answer
    assert caplog.records == []


async def test_a_request_without_a_target(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused as any other; aiohttp's parser returns it without a URL."""
    pair = await _connect(server, b"CONNECT  \r\nHost: x\r\n\r\n")
    assert (await _rest(pair)).split()[1] == b"404"
    assert (await _rest(await _connect(server, QUICK))).endswith(b"ok")
    assert caplog.records == []


async def test_a_malformed_request_leaves_no_text_in_the_log(server: Server) -> None:
    """A header with a NUL is counted; its value, which may be a token, is not logged."""
    with structlog.testing.capture_logs() as lines:
        for _ in range(50):
            answer = await _rest(
                await _connect(
                    server,
                    b"GET /quick HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
                    + SECRET.encode()
                    + b"\0\r\n\r\n",
                )
            )
            assert answer.split()[1] == b"400"
        async with asyncio.timeout(10):
            await _until(lambda: bool(lines))
        await asyncio.sleep(2 * SHORT.head_s)
    assert [line["event"] for line in lines] == ["connections cut"]
    assert set(lines[0]["counts"]) == {"malformed"}
    assert SECRET not in str(lines)


async def test_files_that_run_out_are_logged_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no connection can be accepted, the oldest give way, and the log stays small."""
    pairs = [await _connect(server, HALF, f"127.0.0.{number}") for number in range(2, 5)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with structlog.testing.capture_logs() as lines:
        client = socket.socket()
        client.setblocking(False)  # noqa: FBT003 - how sockets take it
        open_files = max(map(int, os.listdir("/proc/self/fd"))) + 1  # noqa: PTH208 - numbers
        taken = []
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
            while True:
                taken.append(socket.socket())
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(client, ("127.0.0.1", server.port))
            await loop.sock_sendall(client, QUICK)
            answer = await asyncio.wait_for(loop.sock_recv(client, 1000), 10)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in (client, *taken):
                each.close()
    assert b"200 OK" in answer
    assert len(lines) <= 1, lines
    for _, writer in pairs:
        writer.close()


async def test_a_unix_socket_is_limited_too(tmp_path: Path) -> None:
    """Any listening socket."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.listen()
    async with serving(SHORT, listener):
        pair = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        pair[1].write(HALF)
        assert (await _rest(pair)).startswith(b"HTTP/1.1 408 ")
        connector = aiohttp.UnixConnector(str(tmp_path / "socket"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://localhost/quick") as response,
        ):
            assert response.status == 200


async def test_an_answer_comes_before_the_rest_of_a_body(server: Server) -> None:
    """Who uploads much without need reads why it was refused."""
    body = io.BytesIO(bytes(20 << 20))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{server.port}/quick", data=body) as response,
    ):
        assert response.status == 405


def test_limits_fit_the_process() -> None:
    """Half of the open files are left for the rest; one address has half of that."""
    limits = Limits()
    assert limits.within(65_536) == limits
    small = limits.within(256)
    assert (small.connections, small.connections_per_address) == (128, 64)
    whole = Limits(connections=100, connections_per_address=100).within(120)
    assert (whole.connections, whole.connections_per_address) == (60, 60)


@pytest.mark.parametrize(
    "values", [{"connections": 0}, {"head_s": 0}, {"idle_s": float("inf")}, {"head_bytes": -1}]
)
def test_limits_out_of_range(values: dict[str, Any]) -> None:
    """The message names the field and what would be right."""
    with pytest.raises(ValueError, match=f"{next(iter(values))} is .*: give a"):
        Limits(**values)


def test_the_soft_limit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the hard limit, and no further than is of use."""
    asked: list[tuple[int, int]] = []
    limit = [1024, 4096]

    def setrlimit(_: int, value: tuple[int, int]) -> None:
        asked.append(value)
        limit[:] = value

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert raise_open_files() == 4096
    assert raise_open_files() == 4096
    limit[:] = [1024, resource.RLIM_INFINITY]
    assert raise_open_files() == OPEN_FILES
    assert asked == [(4096, 4096), (OPEN_FILES, resource.RLIM_INFINITY)]
