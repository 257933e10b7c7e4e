"""Raw bytes against a real gateway: whatever is sent, it stays up, answers others and is quiet.

A round opens a few connections and sends each something that is hardly HTTP, or is it in an odd
way. Afterwards a client's own request is answered, no answer was a fault of the server, and
neither the log's size nor its text tells what was sent.
"""

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from typing import Final

import psutil
import pytest

from attacks.conftest import Attack
from rung.gateway.routes import API, ROUTES
from support.gateway.client import TOKEN
from support.gateway.process import GatewayProcess, gateway_process

pytestmark = pytest.mark.attacks

_LOG_BYTES_MAX: Final = 200_000
_MEMORY_BYTES_MAX: Final = 600 << 20
_OPEN_FILES: Final = 512
_WAIT_S: Final = 0.2

_METHODS: Final = (
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"CONNECT", b"TRACE",
    b"PRI", b"get", b"G\0T", b"", b"A" * 300, b"\xff\xfe",
)  # fmt: skip
_VERSIONS: Final = (
    b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.10", b"http/1.1", b"HTTP/", b"",
    b"HTTP/1.1 x", b"RTSP/1.0",
)  # fmt: skip
_HOSTS: Final = (b"127.0.0.1", b"localhost", b"[::1]", b"evil.example", b"", b"\0", b"a" * 9000)
_VALUES: Final = (
    b"", b" ", b"\0", b"\x01", b"\xff\xfe", b"x" * 8100, b"x" * 9000, b"a\r b", b"a\n b", b"\t",
    b"chunked", b"gzip", b"identity", b"chunked, chunked", b"xchunked", b"chunked\0", b"0", b"-1",
    b"+5", b"5, 5", b"5, 6", b"0x5", b"9" * 40, b"1e3", b"bytes=0-", b"bytes=9-1", b"keep-alive",
    b"close", b"upgrade", b"websocket", b"h2c", b"100-continue", b"multipart/form-data",
    b"multipart/form-data; boundary=b", b"00-0-0-0", b"Basic " + b"e" * 50, b"text/html",
)  # fmt: skip
_NAMES: Final = (
    b"Content-Length", b"Transfer-Encoding", b"Connection", b"Upgrade", b"Expect", b"Range",
    b"Content-Type", b"Content-Encoding", b"Accept-Encoding", b"Cookie", b"traceparent",
    b"If-None-Match", b"If-Range", b"Last-Event-ID", b"Idempotency-Key", b"X-Forwarded-For",
    b"Sec-WebSocket-Key", b"Sec-WebSocket-Version", b"Rung-After", b"", b"a b", b"a\0", b"\xff",
    b"x" * 8200, b" x", b"Transfer-Encoding ", b"Content_Length",
)  # fmt: skip


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Return a gateway with few open files."""
    with gateway_process(tmp_path_factory.mktemp("gateway"), open_files=_OPEN_FILES) as found:
        yield found


def _target(chance: random.Random) -> bytes:
    route = chance.choice(ROUTES)
    path = (API + route.path).encode()
    return chance.choice(
        (
            path,
            b"/",
            b"/healthz",
            b"/app.js",
            b"*",
            b"",
            b"http://evil.example/api/v1/status",
            b"//" * 500,
            b"/%00%ff%zz",
            b"/\xff\xfe",
            b"/" + b"a" * 9000,
            path + b"?" + b"a=1&" * 2000,
            path.replace(b"{", b"%7B") + b"/../../..",
            b"/api/v1/status\0",
            b"evil.example:443",
        )
    )


def _head(chance: random.Random, *lines: bytes) -> bytes:
    """Return a head that is right in most places."""
    method = chance.choice(_METHODS[:3] if chance.random() < 0.7 else _METHODS)
    version = b"HTTP/1.1" if chance.random() < 0.8 else chance.choice(_VERSIONS)
    host = b"127.0.0.1" if chance.random() < 0.8 else chance.choice(_HOSTS)
    fields = [b"Host: " + host]
    if chance.random() < 0.6:
        fields.append(
            b"Authorization: Bearer " + TOKEN.encode() + chance.choice((b"", b"\0", b" "))
        )
    fields += lines
    for _ in range(chance.choice((0, 0, 1, 2, 5))):
        separator = b": " if chance.random() < 0.9 else chance.choice((b"", b":", b" : ", b"\0:"))
        fields.append(chance.choice(_NAMES) + separator + chance.choice(_VALUES))
    chance.shuffle(fields)
    end = b"\r\n" if chance.random() < 0.9 else chance.choice((b"\n", b"\r", b"\r\r\n", b"\0"))
    first = b" ".join((method, _target(chance), version))
    return end.join((first, *fields)) + end + end


def _malformed(chance: random.Random) -> bytes:
    """Some bytes of a head are flipped, cut or inserted."""
    data = bytearray(_head(chance))
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(data)) if data else 0
        match chance.randrange(3):
            case 0 if data:
                data[place] = chance.randrange(256)
            case 1:
                del data[place : place + chance.randint(1, 60)]
            case _:
                data[place:place] = chance.choice(_VALUES)[:200]
    return bytes(data)


def _chunks(chance: random.Random) -> bytes:
    """A chunked body whose sizes, ends and trailers are what they should not be."""
    parts = [_head(chance, b"Transfer-Encoding: chunked")]
    sizes = (b"0", b"5", b"ffffffffffffffffff", b"-5", b"zz", b"5;x=" + b"y" * 5000, b"", b" 5")
    for _ in range(chance.randint(1, 6)):
        size = chance.choice(sizes)
        data = bytes(chance.randrange(256) for _ in range(chance.choice((0, 5, 5, 50))))
        parts.append(size + chance.choice((b"\r\n", b"\n", b"")) + data + b"\r\n")
    parts.append(
        chance.choice((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"0\r\n" + b"X: y\r\n" * 5000, b""))
    )
    return b"".join(parts)


def _smuggled(chance: random.Random) -> bytes:
    """Two lengths that disagree, with a request where one of them says that the body is."""
    inner = b"GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    lengths = (
        (b"Content-Length: 4", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 4", b"Content-Length: %d" % len(inner)),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
        (b"Transfer-Encoding : chunked", b"Content-Length: 4"),
        (b"Transfer-Encoding: xchunked", b"Content-Length: 4"),
        (b"Content-Length: 0, %d" % len(inner),),
        (b"Content-Length: +4",),
        (b"Transfer-Encoding:\x0bchunked",),
    )
    return _head(chance, *chance.choice(lengths)) + chance.choice((b"0\r\n\r\n", b"4\r\n")) + inner


def _pipelined(chance: random.Random) -> bytes:
    """Many requests at once."""
    return b"".join(_head(chance) for _ in range(chance.choice((2, 10, 100))))


def _oversized(chance: random.Random) -> bytes:
    """A head of many lines or of long ones."""
    lines = [
        b"X-%d: %s" % (number, b"x" * chance.choice((10, 1000, 8000)))
        for number in range(chance.choice((50, 200, 2000)))
    ]
    return _head(chance, *lines)


def _form(chance: random.Random) -> bytes:
    """A multipart body with parts that are odd."""
    names = ("config", "code", "x" * 3000, "\0", "", 'a"b', "con\r\nfig")
    body = b""
    for _ in range(chance.randint(0, 4)):
        name = chance.choice(names).encode()
        body += b'--b\r\nContent-Disposition: form-data; name="' + name + b'"'
        body += chance.choice((b"\r\n\r\n", b"\r\n", b"")) + chance.choice(_VALUES) + b"\r\n"
    body += chance.choice((b"--b--\r\n", b"--b", b""))
    length = len(body) + chance.choice((0, 0, 0, 1000, -1 if body else 0))
    return (
        b"POST /api/v1/experiments HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        + f"Authorization: Bearer {TOKEN}\r\n".encode()
        + b"Content-Type: multipart/form-data; boundary=b\r\n"
        + b"Content-Length: %d\r\n\r\n" % length
        + body
    )


def _noise(chance: random.Random) -> bytes:
    """Anything; also what other protocols begin with."""
    tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(500)
    h2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(50)
    return chance.choice((chance.randbytes(chance.randint(1, 5000)), tls, h2, b"\r\n" * 5000))


SHAPES: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    _head,
    _malformed,
    _chunks,
    _smuggled,
    _pipelined,
    _oversized,
    _form,
    _noise,
)


def _send(port: int, data: bytes, chance: random.Random) -> bytes:
    """Send bytes, in one piece or several, and return what is answered within a while."""
    found = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as sent:
        sent.settimeout(_WAIT_S)
        begin = 0
        while begin < len(data):
            size = len(data) if chance.random() < 0.7 else chance.choice((1, 10, 1000))
            sent.sendall(data[begin : begin + size])
            begin += size
        if chance.random() < 0.2:  # which asyncio takes for leaving
            sent.shutdown(socket.SHUT_WR)
        while len(found) < 200_000 and (more := sent.recv(65_536)):
            found += more
    return found


def _statuses(answers: bytes) -> set[int]:
    """Return the statuses of answers that follow each other."""
    lines = answers.split(b"HTTP/1.")[1:]
    return {int(line[2:5]) for line in lines if line[1:2] == b" " and line[2:5].isdigit()}


def _check(gateway: GatewayProcess, answers: bytes, data: bytes) -> None:
    """Hold what must hold after anything.

    Raises:
        AssertionError: it does not.
    """
    assert gateway.process.poll() is None, gateway.log.read_text(errors="replace")[-5000:]
    faults = {status for status in _statuses(answers) if status >= 500 and status != 503}
    assert not faults, (faults, data[:2000], answers[:2000])


def _check_log(gateway: GatewayProcess) -> None:
    assert gateway.status() == 200
    log = gateway.log.read_bytes()
    assert len(log) < _LOG_BYTES_MAX
    assert TOKEN.encode() not in log
    assert b"Traceback" not in log, log[-5000:]
    assert psutil.Process(gateway.process.pid).memory_info().rss < _MEMORY_BYTES_MAX


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__.strip("_"))
def test_bytes_that_are_hardly_http(
    gateway: GatewayProcess, attack: Attack, shape: Callable[[random.Random], bytes]
) -> None:
    """One shape of bytes after the other, each on a connection of its own."""
    for chance in attack.rounds(0.7 / len(SHAPES)):
        data = shape(chance)
        _check(gateway, _send(gateway.port, data, chance), data)
        if attack.round % 20 == 0:
            assert gateway.status() == 200
    _check_log(gateway)


def test_the_probes_port(gateway: GatewayProcess, attack: Attack) -> None:
    """The same at the port of the probes."""
    for chance in attack.rounds(0.1):
        data = chance.choice(SHAPES)(chance)
        _check(gateway, _send(gateway.probe, data, chance), data)
    _check_log(gateway)


def test_connections_that_stay(gateway: GatewayProcess, attack: Attack) -> None:
    """Hundreds of connections from many addresses that send a part, and others do not notice."""
    with contextlib.ExitStack() as stack:
        for chance in attack.rounds(0.2):
            data = chance.choice(SHAPES)(chance)
            with contextlib.suppress(OSError):
                kept = stack.enter_context(socket.socket())
                kept.settimeout(_WAIT_S)
                kept.bind((f"127.0.0.{chance.randint(1, 250)}", 0))
                kept.connect(("127.0.0.1", chance.choice((gateway.port, gateway.probe))))
                kept.sendall(data[: chance.randrange(len(data) + 1)])
            if attack.round % 20 == 0:
                assert gateway.status() == 200
            if attack.round % 300 == 299:
                stack.close()
    _check_log(gateway)
