"""Clients that never finish, against a gateway of its own with few open files."""

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Iterator

import pytest

from gateway.conftest import EXPERIMENT_FILE, World, patient
from rung.runtime.http.limits import Limits
from support.gateway.client import TOKEN, Client
from support.gateway.process import GatewayProcess, gateway_process

pytestmark = pytest.mark.processes

_LOG_BYTES_MAX = 20_000
_HALVES = {
    "nothing": b"",
    "head": b"GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bea",
    "body": b"POST /api/v1/experiments HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 99999999\r\n\r\n--b\r\n",
    "unread": b"GET /style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 30,
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Return one that may open 256 files, hard limit included."""
    with gateway_process(tmp_path_factory.mktemp("gateway"), open_files=256) as found:
        yield found


@contextlib.contextmanager
def _many(port: int, data: bytes, count: int, addresses: int) -> Iterator[None]:
    """Hold so many connections, as far as they are accepted, each with these bytes sent."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(0.5)
            with contextlib.suppress(OSError):
                connection.bind((f"127.0.0.{1 + number % addresses}", 0))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect(("127.0.0.1", port))
                connection.sendall(data)
        yield


@pytest.mark.parametrize("half", _HALVES)
@pytest.mark.parametrize("addresses", [1, 100])
def test_clients_are_answered_beside_requests_that_never_finish(
    gateway: GatewayProcess, half: str, addresses: int
) -> None:
    """Without a token nothing keeps others out, and the log stays small."""
    with _many(gateway.port, _HALVES[half], 400, addresses):
        for _ in range(5):
            assert gateway.status() == 200
    assert gateway.log.stat().st_size < _LOG_BYTES_MAX


def test_probes_are_answered_beside_requests_that_never_finish(gateway: GatewayProcess) -> None:
    """The probe's port is attacked, and asked as a kubelet asks."""
    with _many(gateway.probe, b"GET /healthz HTTP/1.1\r\nHos", 400, 1):
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", gateway.probe, timeout=10)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
        assert gateway.status() == 200
    assert gateway.log.stat().st_size < _LOG_BYTES_MAX


@pytest.mark.parametrize("port", ["http", "probe"])
def test_malformed_requests_leave_no_token_in_the_log(gateway: GatewayProcess, port: str) -> None:
    """However many there are: one line a minute, without what was sent."""
    secret = b"secret-of-somebody"
    before = gateway.log.stat().st_size
    for number in range(100):
        connection = socket.create_connection(
            ("127.0.0.1", gateway.port if port == "http" else gateway.probe), 10
        )
        with connection:
            connection.sendall(
                b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-%d: 1\r\n"
                b"Authorization: Bearer %s\0\r\n\r\n" % (number, secret)
            )
            assert connection.recv(100).split()[1] == b"400"
    log = gateway.log.read_bytes()
    assert secret not in log
    assert b"Traceback" not in log
    assert len(log) - before < 2_000


def test_a_body_that_is_not_read_is_no_fault(gateway: GatewayProcess) -> None:
    """It cannot be unpacked, which the server finds only after its answer."""
    before = gateway.log.stat().st_size
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as connection:
        connection.sendall(
            b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: 1000\r\n\r\n"
        )
        assert connection.recv(1_000).split()[1] == b"404"
        connection.sendall(bytes(1_000))
        while connection.recv(1_000):
            pass
    assert gateway.status() == 200
    assert b"Traceback" not in gateway.log.read_bytes()[before:]


def test_refused_requests_do_not_fill_the_log(gateway: GatewayProcess) -> None:
    """Who has no token can write no lines, whatever the method."""
    before = gateway.log.stat().st_size
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    for number in range(200):
        method = ("POST", "DELETE", "PUT", "PATCH")[number % 4]
        path = ("/api/v1/experiments", "/", "/nosuch")[number % 3]
        host = ("127.0.0.1", "evil.example")[number % 2]
        connection.request(method, path, headers={"Authorization": "Bearer wrong", "Host": host})
        answer = connection.getresponse()
        assert answer.status in {401, 404, 405, 421}
        answer.read()
    connection.close()
    assert gateway.log.stat().st_size - before < 2_000


async def test_a_submission_that_stops_is_answered(world: World) -> None:
    """408 says what is wanted, and nothing is on record."""
    world.settings = patient(limits=Limits(progress_s=0.5))
    async with world.gateway() as client:
        port = int(client.url.rpartition(":")[2])
        status, kind, body = await asyncio.to_thread(_half_a_submission, port)
    assert (status, kind) == (408, "application/problem+json")
    assert b"send at least 16,384 bytes" in body
    assert await world.all("experiments") == []


def _half_a_submission(port: int) -> tuple[int, str | None, bytes]:
    """Return the answer to a submission that ends in the middle, with the connection open."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.putrequest("POST", "/api/v1/experiments")
        connection.putheader("Authorization", f"Bearer {TOKEN}")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader("Content-Length", "100000")
        connection.endheaders()
        connection.send(b"--b\r\nContent-Disposition: form-data; name=config\r\n\r\n")
        connection.send(EXPERIMENT_FILE.encode())
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read()


async def test_broken_chunks_are_the_clients_fault(client: Client) -> None:
    """400, not a fault of the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.split(":")[2]))
    writer.write(
        b"POST /api/v1/experiments/validate HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        + f"Authorization: Bearer {TOKEN}\r\n".encode()
        + b"Transfer-Encoding: chunked\r\n\r\n5\r\nname:\r\nzz\r\nnonsense\r\n"
    )
    async with asyncio.timeout(10):
        line = await reader.readline()
    writer.close()
    assert line.split()[1] == b"400", line
