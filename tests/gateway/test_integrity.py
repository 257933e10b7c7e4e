"""Integrity of what is sent: checked once, and again when it changes."""

import asyncio
import os
import threading
from pathlib import Path

import aiohttp
import pytest
from blake3 import blake3

from gateway.conftest import World
from rung.gateway.downloads import integrity
from rung.gateway.downloads.integrity import CHUNK, CheckedFile, Integrity
from rung.ledger import MemoryLedger
from rung.storage import FileEntry, FolderStore, ObjectDamaged
from support.gateway.checkpoint import store_files
from support.gateway.client import TOKEN
from support.gateway.scenario import EXPERIMENT

DATA = bytes(number % 251 for number in range(100_000)) * 100
"""Three chunks."""


class Counting(FolderStore):
    """A folder that counts the bytes that are read, and may pass for a remote store."""

    def __init__(self, root: Path, url: str | None = None) -> None:
        super().__init__(root)
        self.bytes_read = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._url = url

    @property
    def url(self) -> str:
        """Where it seems to be."""
        return self._url or super().url

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return some of an object, and count it."""
        assert self.go_on.wait(20)
        data = super().read(name, offset, size)
        self.bytes_read += len(data)
        return data


def _file(data: bytes = DATA) -> CheckedFile:
    entry = FileEntry(size_bytes=len(data), blake3=blake3(data).hexdigest())
    return CheckedFile("c1", "model.pt", "", "model", entry)


async def _read(checked: Integrity, file: CheckedFile, begin: int = 0, end: int = 0) -> bytes:
    found = [it async for it in checked.read(file, begin, end or file.entry.size_bytes)]
    return b"".join(found)


async def test_a_file_is_digested_once(tmp_path: Path) -> None:
    """However many ranges of it are asked for, by however many at a time."""
    store = Counting(tmp_path)
    store.put_bytes("model", DATA)
    checked = Integrity(store)
    await asyncio.gather(*(checked.check(_file(), whole=False) for _ in range(5)))
    assert store.bytes_read == len(DATA)
    assert await _read(checked, _file(), 10, 20) == DATA[10:20]
    assert store.bytes_read == len(DATA) + 10


async def test_a_client_that_leaves_ends_no_check(tmp_path: Path) -> None:
    """The next one finds it done."""
    store = Counting(tmp_path)
    store.put_bytes("model", DATA)
    checked = Integrity(store)
    store.go_on.clear()
    leaving = asyncio.create_task(checked.check(_file(), whole=False))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    store.go_on.set()
    await checked.check(_file(), whole=False)
    assert store.bytes_read <= len(DATA)


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"x", b"x" + DATA[1:], b""])
async def test_damage_is_named(tmp_path: Path, data: bytes) -> None:
    """Shorter, longer, other and empty."""
    store = FolderStore(tmp_path)
    store.put_bytes("model", data)
    with pytest.raises(ObjectDamaged, match=r"checkpoint c1: model\.pt has"):
        await Integrity(store).check(_file(), whole=True)


async def test_what_is_changed_in_its_place_is_checked_again(tmp_path: Path) -> None:
    """Also with its old size and time of change."""
    store = FolderStore(tmp_path)
    store.put_bytes("model", DATA)
    checked = Integrity(store)
    await checked.check(_file(), whole=True)
    path = store.root / "model"
    before = path.stat()
    await asyncio.sleep(0.02)  # the kernel's clock for times of files
    with path.open("r+b") as opened:
        opened.write(b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ObjectDamaged):
        await checked.check(_file(), whole=True)


async def test_the_last_bytes_of_a_damaged_file_are_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file of a remote store is digested while it is sent, and fetched once."""
    monkeypatch.setattr(integrity, "FETCHED_FIRST", CHUNK)
    store = Counting(tmp_path, "s3://bucket")
    store.put_bytes("model", DATA)
    checked = Integrity(store)
    await checked.check(_file(), whole=True)
    assert await _read(checked, _file()) == DATA
    assert store.bytes_read == len(DATA)
    await checked.check(_file(), whole=False)
    assert store.bytes_read == len(DATA)

    store.put_bytes("model", b"x" + DATA[1:])
    got = 0
    with pytest.raises(ObjectDamaged, match="digest"):  # noqa: PT012 - what came before counts
        async for data in checked.read(_file(), 0, len(DATA)):
            got += len(data)
    assert got < len(DATA)
    with pytest.raises(ObjectDamaged):
        await checked.check(_file(), whole=False)


async def test_what_is_replaced_while_it_is_sent_is_not_completed(tmp_path: Path) -> None:
    """Its last bytes are held back."""
    store = FolderStore(tmp_path)
    store.put_bytes("model", DATA)
    checked = Integrity(store)
    await checked.check(_file(), whole=True)
    got = 0
    with pytest.raises(ObjectDamaged, match="replaced"):  # noqa: PT012 - as above
        async for data in checked.read(_file(), 0, len(DATA)):
            if not got:
                store.put_bytes("model", b"y" * len(DATA))
            got += len(data)
    assert got < len(DATA)


async def test_a_damaged_file_of_a_remote_store_never_arrives_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut before the announced length is reached."""
    monkeypatch.setattr(integrity, "FETCHED_FIRST", CHUNK)
    world = World(MemoryLedger(), Counting(tmp_path / "objects", "s3://bucket"))
    await store_files(world, tmp_path, {"model.pt": DATA})
    name = f"checkpoints/{EXPERIMENT}/c1/model.pt"
    world.store.put_bytes(name, DATA[:-1] + b"!")
    async with world.gateway() as client:
        for path in ("file?name=model.pt", "archive"):
            got = 0
            url = f"{client.url}/api/v1/checkpoints/c1/{path}"
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with client.session.get(url, headers=headers) as response:
                with pytest.raises(aiohttp.ClientPayloadError):  # noqa: PT012 - as above
                    async for data in response.content.iter_any():
                        got += len(data)
                assert got < int(response.headers["Content-Length"])
