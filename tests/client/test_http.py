"""Requests over sockets: connections, bodies, time-outs, certificates."""

import asyncio
import contextlib
import gc
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rung.client import _http as http
from rung.client._http import (
    Address,
    Answer,
    ConnectionFailed,
    HttpError,
    InvalidAddress,
    Part,
    Pool,
    Request,
    address_of,
    form,
)
from support.ledger.certificates import authority, signed

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Served:
    """A server that sends given bytes for each request of a connection, then closes it."""

    def __init__(self, *connections: list[bytes]) -> None:
        self._connections = list(connections)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.closed = asyncio.Event()
        """A connection was closed by the server."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        with contextlib.closing(writer):
            for answer in self._connections.pop(0):
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                self.bodies.append(await reader.readexactly(length))
                writer.write(answer)
                await writer.drain()
        self.closed.set()


@contextlib.asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve on a free port; yield the URL."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def pool() -> AsyncIterator[Pool]:
    """Yield connections that are closed in the end."""
    made = Pool()
    try:
        yield made
    finally:
        await made.close()


async def ask(pool: Pool, url: str, *, silence_s: float = 5.0, **request: Any) -> bytes:
    """Return the body of the answer to a request."""
    made = Request(**{"method": "GET", "url": url, **request})
    async with await pool.send(made, silence_s=silence_s) as answer:
        return await answer.read()


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (
            CHUNKED + b"3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nTrailer: 1\r\n\r\n",
            b"abcd",
        ),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nolder", b"older"),
    ],
)
async def test_bodies(sent: bytes, body: bytes) -> None:
    """A body is as long as the answer says, or as the connection lasts."""
    async with serving(Served([sent])) as url, pool() as connections:
        assert await ask(connections, url) == body


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        CHUNKED + b"3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
)
async def test_answers_that_are_none(sent: bytes) -> None:
    """What ends early, or is no HTTP, is an error and never a shorter answer."""
    async with serving(Served([sent])) as url, pool() as connections:
        with pytest.raises(HttpError):
            await ask(connections, url)


async def test_what_is_sent() -> None:
    """Path and query are sent as they are; a user in the URL signs in."""
    server = Served([OK, OK, OK])
    async with serving(server) as url, pool() as connections:
        await ask(connections, f"{url}/a%2Fb?c=%2B&d", headers={"X-One": "1"})
        await ask(connections, url.replace("//", "//me:p%40ss@"))
        await ask(connections, url, method="POST")
        await connections.close()
    first, second, third = server.heads
    assert first.startswith(b"GET /a%2Fb?c=%2B&d HTTP/1.1\r\n")
    assert b"\r\nx-one: 1\r\n" in first.lower()
    assert f"\r\nhost: {url.removeprefix('http://')}\r\n".encode() in first.lower()
    assert b"\r\nauthorization: basic bwu6cebzcw==\r\n" in second.lower()
    assert second.startswith(b"GET / HTTP/1.1\r\n")
    assert b"\r\ncontent-length: 0\r\n" in third.lower()


async def test_a_connection_is_used_again() -> None:
    """One after the other on one connection; another one once the server has closed it."""
    server = Served([OK, OK], [OK])
    async with serving(server) as url, pool() as connections:
        for _ in range(2):
            assert await ask(connections, url) == b"ok"
        await server.closed.wait()
        assert await ask(connections, url) == b"ok"
    assert len(server.heads) == 3


async def test_a_connection_that_is_closed_at_a_request() -> None:
    """A GET is sent again on another connection; a POST is not, which its caller decides."""
    server = Served([OK, b""], [OK, b""])
    async with serving(server) as url, pool() as connections:
        for _ in range(2):
            assert await ask(connections, url) == b"ok"
        with pytest.raises(HttpError):
            await ask(connections, url, method="POST", body=b"{}")
    assert [head.split()[0] for head in server.heads] == [b"GET", b"GET", b"GET", b"POST"]


async def test_a_body_that_is_not_read() -> None:
    """Its connection is closed, so that no later answer begins with the rest of it."""
    server = Served([OK], [OK])
    async with serving(server) as url, pool() as connections:
        async with await connections.send(Request("GET", url), silence_s=5) as answer:
            assert answer.status == 200
        assert await ask(connections, url) == b"ok"


async def test_silence() -> None:
    """A server that sends nothing is given up, also in the middle of a body."""
    served, hold = Served([OK[:-1]]), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK[:-1])
        await hold.wait()
        await served(reader, writer)

    async with serving(serve) as url, pool() as connections:
        answer = await connections.send(Request("GET", url), silence_s=0.1)
        async with answer:
            with pytest.raises(TimeoutError, match=r"silent for 0\.1 s"):
                await answer.read()
        hold.set()
        await served.closed.wait()


async def test_an_upload_is_no_silence() -> None:
    """While bytes are sent the server need not send any."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(20):
                await asyncio.sleep(0.05)  # a slow network: each piece well within the silence
                await reader.readexactly(1 << 20)
            writer.write(OK)

    async with serving(serve) as url, pool() as connections:
        body = bytes(20 << 20)
        assert await ask(connections, url, method="POST", body=body, silence_s=0.5) == b"ok"


async def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is trusted if SSL_CERT_FILE has what signed its certificate, for its host."""
    ca = authority(tmp_path, "ca")
    pair = signed(ca, tmp_path, "server", "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    async with serving(Served([OK], [OK]), tls) as url, pool() as connections:
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(connections, url)
        monkeypatch.setenv("SSL_CERT_FILE", str(ca.certificate))
        assert await ask(connections, url) == b"ok"
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(connections, url.replace("127.0.0.1", "localhost"))


async def test_a_refused_connection() -> None:
    """It raises another error than a connection that broke."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with pool() as connections:
        with pytest.raises(ConnectionFailed):
            await ask(connections, f"http://127.0.0.1:{port}")


async def test_a_server_that_takes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not answer while connecting is given up."""
    monkeypatch.setattr(http, "_CONNECT_S", 0.1)

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(http, "start_connection", never)
    async with pool() as connections:
        with pytest.raises(TimeoutError, match=r"no connection within 0\.1 s"):
            await ask(connections, "http://127.0.0.1:1")


async def test_more_requests_than_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for one; what fails or is canceled gives its own back."""
    monkeypatch.setattr(http, "_AT_ONCE", 2)
    asked, hold = asyncio.Semaphore(0), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                asked.release()
                await hold.wait()
                writer.write(OK)

    async with serving(serve) as url, pool() as connections:
        with pytest.raises(InvalidAddress):
            await ask(connections, "ftp://x")
        tasks = [asyncio.create_task(ask(connections, url)) for _ in range(5)]
        for _ in range(2):
            await asked.acquire()
        assert asked.locked()
        canceled = tasks.pop(0)
        canceled.cancel()
        await asked.acquire()
        hold.set()
        assert await asyncio.gather(*tasks) == [b"ok"] * 4
        with pytest.raises(asyncio.CancelledError):
            await canceled


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8080", Address("http", "127.0.0.1", 8080, "")),
        ("https://Rung.Example/lab/", Address("https", "rung.example", 443, "/lab/")),
        ("http://[::1]:8080/", Address("http", "::1", 8080, "/")),
        ("http://bücher.example", Address("http", "xn--bcher-kva.example", 80, "")),
        ("", None),
        ("foo", None),
        ("localhost:8080", None),
        ("ftp://x", None),
        ("http://", None),
        ("http://[", None),
        ("http://x:99999", None),
        ("http://x:y", None),
    ],
)
def test_addresses(url: str, address: Address | None) -> None:
    """An URL names a server, or is refused."""
    if address is not None:
        assert address_of(url) == address
        return
    with pytest.raises(InvalidAddress):
        address_of(url)


def test_authority() -> None:
    """The port is left out where it is the scheme's; an IPv6 address has brackets."""
    urls = ["http://x", "https://x", "https://x:80", "http://[::1]:8080"]
    assert [address_of(url).authority for url in urls] == ["x", "x", "x:80", "[::1]:8080"]


def test_a_form() -> None:
    """Its parts are between boundaries that none of them contains."""
    body, kind = form(Part("a", "a.txt", "text/plain", b"x\r\ny"), Part("b", "b", "x/y", b""))
    boundary = kind.removeprefix("multipart/form-data; boundary=")
    assert (
        body
        == (
            f'--{boundary}\r\nContent-Disposition: form-data; name="a"; filename="a.txt"\r\n'
            "Content-Type: text/plain\r\n\r\nx\r\ny\r\n"
            f'--{boundary}\r\nContent-Disposition: form-data; name="b"; filename="b"\r\n'
            f"Content-Type: x/y\r\n\r\n\r\n--{boundary}--\r\n"
        ).encode()
    )


async def test_an_answer_is_read_once() -> None:
    """After its end there is nothing more of it, and the next request is not disturbed."""
    async with serving(Served([OK, OK])) as url, pool() as connections:
        answer: Answer = await connections.send(Request("GET", url), silence_s=5)
        async with answer:
            assert [await answer.read(), await answer.read()] == [b"ok", b""]
        assert await ask(connections, url) == b"ok"


async def test_what_is_given_up_is_closed_with_the_rest() -> None:
    """`close` closes also the connection of an answer that was not read to its end."""
    sockets: list[socket.socket] = []
    connections = Pool(check=sockets.append)
    async with serving(Served([CHUNKED])) as url:
        async with await connections.send(Request("GET", url), silence_s=5.0):
            pass
        assert sockets[0].fileno() != -1
        await connections.close()
        assert sockets[0].fileno() == -1


async def test_a_connection_that_is_canceled_leaves_no_socket() -> None:
    """At whichever step of connecting."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        async with serving(Served(*[[OK]] * 40)) as url, pool() as connections:
            for steps in range(20):
                asking = asyncio.create_task(ask(connections, url))
                for _ in range(steps):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        gc.collect()
