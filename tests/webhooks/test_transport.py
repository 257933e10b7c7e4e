"""One attempt: where it goes, what it sends, and that it ends, whatever name servers say."""

import asyncio
import ipaddress
import time
from collections.abc import Sequence

import pytest
from aiohttp import web

from rung.subscription.address import AddressRule, Network
from rung.subscription.cloud_event import cloud_event
from rung.subscription.document import Receiver as Sealed
from rung.webhooks.transport import ANSWER_BYTES_MAX, Lookup, Outcome, Transport
from webhooks.installation import KEY, LOCAL
from webhooks.receiver import Receiver, receiving

EVENT = cloud_event(
    "dlv_1", "/rung", "rung.experiment.ended.v1", "e1", "2026-01-01T00:00:00.000Z", {}
)


def naming(*answers: Sequence[str]) -> Lookup:
    """Return a name server that gives these answers, the last one for ever."""
    left = list(answers)

    async def lookup(_host: str, _port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return lookup


async def deliver(url: str, *, allowed: tuple[Network, ...] = (), **options: object) -> Outcome:
    """Try once."""
    rule = AddressRule(allowed, plain=True)
    transport = Transport(rule=rule, attempt_s=2.0, **options)  # type: ignore[arg-type]
    return await transport.deliver("cloudevents", Sealed(url=url, key=KEY), EVENT)


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["169.254.169.254"],
        ["10.0.0.1"],
        ["100.64.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["::ffff:169.254.169.254"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["fd00::1"],
        ["fe80::1%eth0"],
        ["224.0.0.1"],
        ["0.0.0.0"],  # noqa: S104 - nothing is bound
        ["not an address"],
        [],
    ],
)
async def test_a_name_server_cannot_lead_inside(answer: list[str]) -> None:
    """Not even with one good address beside a bad one; nothing is connected to."""
    async with receiving() as receiver:
        found = await deliver(f"http://public.example:{receiver.port}/", lookup=naming(answer))
        assert not found.delivered
        assert "address" in found.reason
        assert receiver.got == []


async def test_the_address_that_was_checked_is_connected_to() -> None:
    """A second answer of the name server changes nothing: it is asked once."""
    asked = 0

    async def rebinding(_host: str, _port: int) -> list[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.2"] if asked == 1 else ["127.0.0.1"]

    async with receiving() as receiver:  # listens on 127.0.0.1 alone
        url = f"http://public.example:{receiver.port}/"
        allowed = (ipaddress.ip_network("127.0.0.2/32"),)
        found = await deliver(url, lookup=rebinding, allowed=allowed)
        assert (found.delivered, asked, receiver.got) == (False, 1, [])
        found = await deliver(url, lookup=naming(["127.0.0.1"]), allowed=LOCAL)
        assert found.delivered
        assert receiver.got[0].headers["host"] == f"public.example:{receiver.port}"


async def test_redirects_are_not_followed() -> None:
    """Wherever they lead."""
    async with receiving() as receiver:

        async def moved(_request: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": f"{receiver.url}/inside"})

        receiver.answer = moved
        found = await deliver(receiver.url, allowed=LOCAL)
        assert (found.delivered, found.status) == (False, 307)
        assert "redirects are not followed" in found.reason
        assert [each.path for each in receiver.got] == ["/hook"]


async def test_proxies_and_cookies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the service does not lead deliveries elsewhere."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1/")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1/")

    async def cookie(_request: web.Request) -> web.Response:
        answer = web.Response()
        answer.set_cookie("session", "x")
        return answer

    async with receiving() as receiver:
        receiver.answer = cookie
        for _ in range(2):
            assert (await deliver(receiver.url, allowed=LOCAL)).delivered
        assert not any("cookie" in each.headers for each in receiver.got)


async def _drip(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(status=200)
    await answer.prepare(request)
    while True:
        await answer.write(b"x")
        await asyncio.sleep(0.01)


async def _flood(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(status=500)
    await answer.prepare(request)
    while True:
        await answer.write(b"x" * 65536)


async def _hang(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


@pytest.mark.parametrize("answer", [_drip, _flood, _hang])
async def test_an_attempt_ends_in_time(answer: object) -> None:
    """Whatever a receiver sends, or does not send."""
    async with receiving() as receiver:
        receiver.answer = answer  # type: ignore[assignment]
        begun = time.monotonic()
        found = await deliver(receiver.url, allowed=LOCAL)
        assert time.monotonic() - begun < 10
        assert len(found.reason) < ANSWER_BYTES_MAX


async def test_a_server_that_speaks_no_http_is_a_failure() -> None:
    """Endless headers, too."""

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while True:
                writer.write(b"X-Header: " + b"x" * 1000 + b"\r\n")
                await writer.drain()
        except OSError:
            writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = await deliver(f"http://127.0.0.1:{port}/", allowed=LOCAL)
    server.close()
    assert not found.delivered
    assert found.reason


async def test_a_certificate_is_verified(tls: "tuple[Receiver, object]") -> None:
    """One that no authority signed is refused; its own authority makes it good."""
    receiver, context = tls
    url = f"https://localhost:{receiver.port}/"
    lookup = naming(["127.0.0.1"])
    refused = await deliver(url, allowed=LOCAL, lookup=lookup)
    assert not refused.delivered
    assert "ertificate" in refused.reason
    assert (await deliver(url, allowed=LOCAL, lookup=lookup, ssl=context)).delivered
    elsewhere = f"https://elsewhere.example:{receiver.port}/"
    assert not (await deliver(elsewhere, allowed=LOCAL, lookup=lookup, ssl=context)).delivered
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("-1", 0.0), ("nan", 0.0), ("inf", 0.0), ("1e9", 86_400.0), ("soon", 0.0)],
)
async def test_retry_after_is_read(text: str, seconds: float) -> None:
    """As a number; what is none, or too much, is bounded."""

    async def busy(_request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": text})

    async with receiving() as receiver:
        receiver.answer = busy
        assert (await deliver(receiver.url, allowed=LOCAL)).retry_after_s == seconds
