"""The key-value server of Horovod's ranks."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from rung.agent.key_values import KeyValues
from rung.agent.network import ReservedPort


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Give the address of a server."""
    port = ReservedPort()
    server = KeyValues()
    await server.open("127.0.0.1", port.number)
    yield f"http://127.0.0.1:{port.number}"
    server.close()
    port.close()


async def test_what_is_put_is_got(url: str) -> None:
    """A value is bytes; a key that is not there is not found yet; the newest value counts."""
    async with aiohttp.ClientSession() as session:
        assert (await session.get(f"{url}/global/1")).status == 404
        for value in (b"first", b"\x00\xff" * 1000):
            assert (await session.put(f"{url}/global/1", data=value)).status == 200
            answer = await session.get(f"{url}/global/1")
            assert (answer.status, await answer.read()) == (200, value)
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
