"""A world in which the directory is decided, as some gateway of an installation does."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from argon2.profiles import CHEAPEST

from gateway.conftest import World
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.identity import passwords
from rung.ledger import MemoryLedger
from rung.runtime import host
from rung.storage import FolderStore


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Return an empty world, beside which the processor runs."""
    world = World(MemoryLedger(), FolderStore(tmp_path / "objects"))
    deciding = asyncio.create_task(host(world.ledger, DirectoryProcessor()))
    yield world
    deciding.cancel()
    await asyncio.gather(deciding, return_exceptions=True)


@pytest.fixture
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have hashes of passwords cost next to nothing, for tests of what is done with passwords."""
    monkeypatch.setattr(passwords, "_hasher", PasswordHasher.from_parameters(CHEAPEST))
    passwords._nobodys.cache_clear()
    yield
    passwords._nobodys.cache_clear()
