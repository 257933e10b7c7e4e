"""Files of checkpoints: from the object store itself where it has URLs, else from here."""

import secrets
from pathlib import Path

import aiohttp
import pytest
from blake3 import blake3

from gateway.conftest import World, until
from rung.client import AsyncClient
from rung.events.checkpoint import CheckpointDeleted
from rung.ledger import MemoryLedger
from rung.storage import open_store
from servers.seaweed import Seaweed
from support.gateway.checkpoint import FILES, TRIAL, store_files
from support.gateway.client import TOKEN, Client
from support.gateway.scenario import EXPERIMENT

PATH = "/checkpoints/c1/file?name=model.pt"


@pytest.fixture
def remote(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return an empty world whose objects are in S3."""
    for name, value in (seaweed.environment | {"RUNG_S3_PATIENCE_S": "1"}).items():
        monkeypatch.setenv(name, value)
    return World(MemoryLedger(), open_store(f"{seaweed.url}/{secrets.token_hex(8)}"))


async def test_a_file_is_sent(world: World, tmp_path: Path) -> None:
    """Whole, with its digest as the tag, also from deeper down and when it is empty."""
    await store_files(world, tmp_path, FILES)
    async with world.gateway() as client:
        for name, data in FILES.items():
            answer = await client.call("GET", "/checkpoints/c1/file", params={"name": name})
            assert (answer.status, answer.body) == (200, data)
            assert answer.headers["etag"] == f'"{blake3(data).hexdigest()}"'
            assert answer.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize(
    ("asked", "status", "begin", "end"),
    [
        ("bytes=10-19", 206, 10, 20),
        ("bytes=99990-", 206, 99_990, 100_000),
        ("bytes=99990-200000", 206, 99_990, 100_000),
        ("bytes=-10", 206, 99_990, 100_000),
        ("bytes=-", 200, 0, 100_000),
        ("lines=1-2", 200, 0, 100_000),
        ("bytes=1-2,5-6", 200, 0, 100_000),
    ],
)
async def test_a_range_is_sent(
    world: World, tmp_path: Path, *, asked: str, status: int, begin: int, end: int
) -> None:
    """What no range means is answered with everything, as HTTP wants it."""
    data = bytes(number % 251 for number in range(100_000))
    await store_files(world, tmp_path, {"model.pt": data})
    async with world.gateway() as client:
        answer = await client.call("GET", PATH, headers={"Range": asked})
    assert (answer.status, answer.body) == (status, data[begin:end])
    if status == 206:
        assert answer.headers["content-range"] == f"bytes {begin}-{end - 1}/100000"


async def test_what_cannot_be_sent(world: World, tmp_path: Path) -> None:
    """A range outside, an unknown file, no name at all, and a deleted checkpoint."""
    await store_files(world, tmp_path, FILES)
    async with world.gateway() as client:
        outside = await client.call("GET", PATH, headers={"Range": "bytes=100000-"})
        unknown = await client.call("GET", "/checkpoints/c1/file?name=../c2/model.pt")
        unnamed = await client.call("GET", "/checkpoints/c1/file")
        await world.write(
            CheckpointDeleted(experiment_id=EXPERIMENT, trial_id=TRIAL, checkpoint_id="c1")
        )
        gone = await until(lambda: client.call("GET", PATH), lambda it: it.status != 200)
    assert (outside.status, outside.kind) == (416, "bad-range")
    assert (unknown.status, unnamed.status, gone.status) == (404, 400, 410)


async def test_another_version_is_sent_whole(world: World, tmp_path: Path) -> None:
    """A range of what the client began to fetch is not mixed with something else."""
    await store_files(world, tmp_path, FILES)
    headers = {"Range": "bytes=10-", "If-Range": '"another"'}
    async with world.gateway() as client:
        answer = await client.call("GET", PATH, headers=headers)
    assert (answer.status, answer.body) == (200, FILES["model.pt"])


async def test_the_store_sends_it_itself(remote: World, tmp_path: Path) -> None:
    """The answer is an URL that works without a token; who wants none gets the bytes."""
    await store_files(remote, tmp_path, FILES)
    async with remote.gateway() as client:
        answer = await client.call("GET", PATH, allow_redirects=False)
        assert answer.status == 307
        assert TOKEN not in answer.headers["location"]
        assert await plainly(client, answer.headers["location"]) == FILES["model.pt"]
        direct = await client.call("GET", f"{PATH}&redirect=false", allow_redirects=False)
        part = await client.call(
            "GET", f"{PATH}&redirect=false", headers={"Range": "bytes=99990-"}
        )
    assert (direct.status, direct.body) == (200, FILES["model.pt"])
    assert (part.status, part.body) == (206, b"m" * 10)


async def plainly(client: Client, url: str) -> bytes:
    """Return what is at an URL, asked for without a token."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        return await response.read()


async def test_the_archive_comes_from_s3_as_well(remote: World, tmp_path: Path) -> None:
    """Who asks for a tar gets one, made while it is sent."""
    await store_files(remote, tmp_path, FILES)
    async with remote.gateway() as client:
        answer = await client.call("GET", "/checkpoints/c1/archive")
    assert answer.status == 200
    assert b"m" * 100_000 in answer.body


async def test_a_download_comes_from_the_store(remote: World, tmp_path: Path) -> None:
    """The client follows, and checks every digest."""
    await store_files(remote, tmp_path, FILES)
    async with remote.gateway() as gateway, AsyncClient(gateway.url, TOKEN) as client:
        await client.download("c1", tmp_path / "best")
    assert {name: (tmp_path / "best" / name).read_bytes() for name in FILES} == FILES


async def test_a_store_out_of_reach_is_gone_around(
    remote: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that cannot reach the object store gets the files by way of the gateway."""
    await store_files(remote, tmp_path, FILES)
    monkeypatch.setenv("RUNG_S3_PUBLIC_ENDPOINT", "http://127.0.0.1:1")
    remote.store = open_store(remote.store.url)
    async with remote.gateway() as gateway, AsyncClient(gateway.url, TOKEN) as client:
        await client.download("c1", tmp_path / "best")
    assert {name: (tmp_path / "best" / name).read_bytes() for name in FILES} == FILES
