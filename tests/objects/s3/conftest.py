"""A server to kill, a store of one's own, a file of several parts."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from objects.s3.bucket import PART, open_at
from rung.objects.s3.store import S3Store
from servers.seaweed import Seaweed


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Give a prefix that no other test has."""
    return hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]


@pytest.fixture
def store(seaweed: Seaweed, prefix: str) -> Iterator[S3Store]:
    """Give an empty store."""
    store = open_at(seaweed, prefix)
    yield store
    store.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Seaweed]:
    """Give a server that the test may kill."""
    with Seaweed(tmp_path / "server") as server:
        yield server


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Give a file of four parts and a bit."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(4 * PART + 12_345))
    return path
