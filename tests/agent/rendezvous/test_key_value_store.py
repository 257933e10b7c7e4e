"""The key-value server of Horovod's ranks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from msgspec import structs

from rung.agent.rendezvous import key_value_store
from rung.agent.rendezvous.key_value_store import KeyValueStore, limits_of
from rung.agent.rendezvous.network import ReservedPort

LIMITS = structs.replace(limits_of(ranks=1), head_s=2.0)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Give the address of a server."""
    port = ReservedPort()
    server = KeyValueStore(LIMITS)
    await server.open("127.0.0.1", port.number)
    yield f"http://127.0.0.1:{port.number}"
    await server.close()
    port.close()


@contextlib.asynccontextmanager
async def connected(url: str, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Give what a server answers to some bytes over a connection of their own."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def test_what_is_put_is_got(url: str) -> None:
    """A value is bytes; a key that is not there is not found yet; the newest value counts."""
    async with aiohttp.ClientSession() as session:
        assert (await session.get(f"{url}/global/1")).status == 404
        for value in (b"first", b"\x00\xff" * 1000):
            assert (await session.put(f"{url}/global/1", data=value)).status == 200
            answer = await session.get(f"{url}/global/1")
            assert (answer.status, await answer.read()) == (200, value)
            assert answer.headers["Connection"] == "close"  # Gloo's client reads until the end
        assert (await session.get(f"{url}/local/1")).status == 404


async def test_a_rank_may_say_that_it_is_done(url: str) -> None:
    """That changes nothing for the others."""
    async with aiohttp.ClientSession() as session:
        await session.put(f"{url}/global/1", data=b"x")
        assert (await session.delete(f"{url}/global/0")).status == 200
        assert (await session.get(f"{url}/global/1")).status == 200


async def test_nonsense_is_refused(url: str) -> None:
    """Another method is refused, and so is a body that is too large."""
    async with aiohttp.ClientSession() as session:
        assert (await session.post(f"{url}/global/1", data=b"x")).status == 405
        large = {"Content-Length": str(10**9)}
        assert (await session.put(f"{url}/global/1", headers=large)).status == 413


async def test_a_peer_cannot_take_all_open_files(url: str) -> None:
    """Beyond its share its oldest connection gives way, so that a rank is always answered."""
    most = LIMITS.connections_per_address
    async with contextlib.AsyncExitStack() as stack:
        held = [
            await stack.enter_async_context(connected(url, b"PUT /half")) for _ in range(4 * most)
        ]
        async with aiohttp.ClientSession() as session:
            assert (await session.put(f"{url}/global/1", data=b"x")).status == 200
        async with asyncio.timeout(20):
            cut = await asyncio.gather(
                *(reader.read() for reader in held[: 3 * most + 1]), return_exceptions=True
            )
    assert all(isinstance(each, ConnectionError) or not each for each in cut)


async def test_half_a_request_ends(url: str) -> None:
    """A peer that never ends its request is answered so, and disconnected."""
    async with asyncio.timeout(20), connected(url, b"GET /global/1 HT") as answer:
        assert (await answer.read()).startswith(b"HTTP/1.1 408 ")


async def test_what_is_kept_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run cannot fill the agent's memory; what is replaced takes room once."""
    monkeypatch.setattr(key_value_store, "_KEPT_BYTES_MAX", 3000)
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            assert (await session.put(f"{url}/global/1", data=b"x" * 1500)).status == 200
        assert (await session.put(f"{url}/global/2", data=b"x" * 1500)).status == 507
        assert (await session.get(f"{url}/global/2")).status == 404
