"""Whatever is sent, the answer is a promised one and never a fault of the server."""

import asyncio
import base64
import random
import re
from urllib.parse import quote

import aiohttp
import pytest

from gateway.conftest import EXPERIMENT_FILE, World
from rung.gateway.routes import ROUTES
from support.gateway.client import TOKEN, Client
from support.gateway.scenario import EXPERIMENT, play

pytestmark = pytest.mark.processes

TEXTS = (
    "",
    " ",
    ".",
    "..",
    "\0",
    "\n",
    "\r\nX: y",
    "'; DROP TABLE events; --",
    "<script>alert(1)</script>",
    "${jndi:ldap://x}",
    "{{7*7}}",
    "%",
    "%25%00",
    "\u202e\ufeff",
    "ß" * 100,
    "\N{PILE OF POO}",
    "a" * 2000,
    "-1",
    "0",
    "1e308",
    "NaN",
    "9" * 40,
    "null",
    "true",
    "[]",
    "{}",
    f"{EXPERIMENT}",
    f"{EXPERIMENT}.0",
    f"{EXPERIMENT}.-1",
    f"{EXPERIMENT}.٣",
    f"{EXPERIMENT}.{'9' * 30}",
    f"{EXPERIMENT}.0.0",
    "../../etc/passwd",
    "c1",
)
NAMES = (
    "cursor",
    "limit",
    "state",
    "label",
    "points",
    "kind",
    "name",
    "rank",
    "level",
    "text",
    "since",
    "until",
    "after",
    "from",
    "x" * 300,
    "",
    "\0",
)
HEADERS = ("Idempotency-Key", "Last-Event-ID", "Content-Type", "Range", "If-None-Match", "Accept")


def _path(template: str, chance: random.Random) -> str:
    parts = []
    for part in template.split("/"):
        if not part.startswith("{"):
            parts.append(part)
        elif chance.random() < 0.3:
            parts.append(EXPERIMENT if "experiment" in part else f"{EXPERIMENT}.0")
        else:
            parts.append(quote(chance.choice(TEXTS), safe=""))
    query = "&".join(
        f"{quote(chance.choice(NAMES))}={quote(chance.choice(TEXTS))}"
        for _ in range(chance.choice([0, 0, 1, 1, 2]))
    )
    return "/".join(parts) + (f"?{query}" if query else "")


def _headers(chance: random.Random) -> dict[str, str]:
    headers = {}
    for _ in range(chance.choice([0, 0, 1, 2])):
        text = chance.choice(TEXTS).encode("ascii", "ignore").decode().strip()
        headers[chance.choice(HEADERS)] = "".join(it for it in text if it.isprintable())
    return headers


@pytest.mark.parametrize("seed", range(6))
async def test_hostile_requests(world: World, seed: int) -> None:
    """Odd ids, parameters, headers and bodies: every answer is one that the document promises."""
    await world.play(play(1))
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    statuses: set[int] = set()
    async with world.gateway() as client:
        for _ in range(120):
            route = chance.choice(ROUTES)
            if route.media_type == "text/event-stream":
                continue  # these never end when they are accepted; see below
            body = chance.choice(TEXTS).encode() * chance.choice([1, 1, 50])
            answer = await client.call(
                route.method,
                _path(route.path, chance),
                headers=_headers(chance),
                data=body if route.method == "POST" else None,
            )
            statuses.add(answer.status)

    assert 500 not in statuses
    assert {200, 400, 404} <= statuses


@pytest.mark.parametrize("seed", range(3))
async def test_hostile_streams(world: World, seed: int) -> None:
    """Streams are accepted or refused with a problem; a client that leaves at once is no fault."""
    await world.play(play(1))
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    routes = [route for route in ROUTES if route.media_type == "text/event-stream"]
    async with world.gateway() as client:
        for _ in range(60):
            headers = {**_headers(chance), "Authorization": f"Bearer {TOKEN}"}
            url = f"{client.url}/api/v1{_path(chance.choice(routes).path, chance)}"
            async with client.session.get(url, headers=headers) as response:
                assert response.status in {200, 400, 404, 409}, await response.text()
        assert (await client.call("GET", "/status")).status == 200


@pytest.mark.parametrize("seed", range(4))
async def test_hostile_forms(client: Client, seed: int) -> None:
    """Submissions with bytes flipped, cut and inserted are refused or accepted, never a fault."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    whole = (
        "--b\r\nContent-Disposition: form-data; name=config\r\n\r\n"
        f"{EXPERIMENT_FILE}\r\n--b\r\nContent-Disposition: form-data; name=code\r\n"
        "Content-Type: application/gzip\r\n\r\n\x1f\x8b\x08\r\n--b--\r\n"
    ).encode("latin-1")
    for _ in range(60):
        body = bytearray(whole)
        for _ in range(chance.randint(1, 5)):
            place = chance.randrange(len(body))
            match chance.randrange(3):
                case 0:
                    body[place] = chance.randrange(256)
                case 1:
                    del body[place : place + chance.randint(1, 40)]
                case _:
                    body[place:place] = chance.choice(TEXTS).encode()[:200]
        answer = await client.call(
            "POST",
            "/experiments",
            data=bytes(body),
            headers={"Content-Type": "multipart/form-data; boundary=b"},
        )
        assert answer.status in {201, 400, 413, 422}, (answer, bytes(body))


@pytest.mark.parametrize("path", ["/models", "/pools/default/configure"])
async def test_json_that_is_nested_too_deep(client: Client, path: str) -> None:
    """It is refused before it is decoded: a deeper stack could not read it from the record."""
    for opened, closed in ((b'{"a":', b"}"), (b"[", b"]")):
        for levels in (63, 900, 4_000):
            deep = opened * levels + b"1" + closed * levels
            body = b'{"name": "[[", "metadata": ' + deep + b', "policy": "x"}'
            answer = await client.call(
                "POST", path, data=body, headers={"Content-Type": "application/json"}
            )
            assert answer.status == (422 if levels == 63 else 400)
            assert levels == 63 or "nested more than 64 levels" in answer.json["detail"]
    body = b'{"no such field": "' + b"[{" * 100 + b'\\"[["}'
    answer = await client.call(
        "POST", path, data=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status == 422  # brackets in a text are none
    unended = b"[" * 65 + b'"\\"' * 15_000
    answer = await client.call(
        "POST", path, data=unended, headers={"Content-Type": "application/json"}
    )
    assert answer.status == 400


async def test_a_body_that_is_too_large(client: Client) -> None:
    """It is said how large one may be; of code folders only where code was sent."""
    headers = {"Content-Type": "application/json"}
    answer = await client.call("POST", "/models", data=b" " * 900_000, headers=headers)
    assert (answer.status, answer.kind) == (413, "too-large")
    assert re.fullmatch(r"the body is larger than [\d,]+ bytes", answer.json["detail"])


@pytest.mark.parametrize("key", [b'["\xff","a"]', b"[" * 1_200, b"\xff"])
async def test_hostile_cursors(client: Client, key: bytes) -> None:
    """A cursor is whatever a client sends."""
    cursor = base64.urlsafe_b64encode(key).decode().rstrip("=")
    for path in ("/models", "/experiments", "/log", "/users"):
        answer = await client.call("GET", f"{path}?cursor={cursor}")
        assert (answer.status, answer.kind) == (400, "bad-parameter")


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=" + "b" * 200,
        'multipart/form-data; boundary="',
        "multipart/form-data; boundary=\u00fc",
        "multipart/mixed; boundary=b",
        "multipart/form-data;boundary",
    ],
)
async def test_hostile_content_types(client: Client, content_type: str) -> None:
    """A boundary that cannot be is refused."""
    answer = await client.call(
        "POST", "/experiments", data=b"--b--", headers={"Content-Type": content_type}
    )

    assert answer.status in {400, 415}


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /api/v1/status HTTP/9.9\r\n\r\n",
        b"GET /api/v1/status HTTP/1.1\r\n\r\n",
        b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET http://evil/api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /api/v1/experiments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
)
async def test_hostile_bytes(client: Client, request_bytes: bytes) -> None:
    """What is hardly HTTP gets a 4xx or no answer, and the server goes on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.split(":")[2]))
    writer.write(request_bytes)
    writer.write_eof()
    async with asyncio.timeout(10):
        line = await reader.readline()
    writer.close()

    assert not line or line.split()[1][:1] == b"4", line
    assert (await client.call("GET", "/status")).status == 200


async def test_client_that_leaves_in_the_middle(world: World, client: Client) -> None:
    """Half a submission leaves nothing behind."""
    form = aiohttp.FormData()
    form.add_field("config", EXPERIMENT_FILE, filename="x.yaml")
    _, writer = await asyncio.open_connection("127.0.0.1", int(client.url.split(":")[2]))
    writer.write(
        b"POST /api/v1/experiments HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        + f"Authorization: Bearer {TOKEN}\r\n".encode()
        + b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n\r\n--b\r\n"
    )
    await writer.drain()
    writer.close()
    await client.get("/status")

    assert await world.all("experiments") == []
