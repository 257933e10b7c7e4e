"""A server to kill, a store of one's own, a file of several parts."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from objects.s3.bucket import PART, open_at
from rung.objects.s3.store import S3Store
from servers import minio
from servers.s3 import KINDS, MINIO, S3Server, server_of


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Give a prefix that no other test has."""
    return hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]


@pytest.fixture
def store(server: S3Server, prefix: str) -> Iterator[S3Store]:
    """Give an empty store."""
    store = open_at(server, prefix)
    yield store
    store.close()


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Give each kind of server that is there."""
    if request.param == MINIO and (lacking := minio.missing()):
        pytest.skip(lacking)
    return str(request.param)


@pytest.fixture(scope="session")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Give a server of each kind; tests keep to prefixes of their own."""
    yield from _started(kind, tmp_path_factory.mktemp("s3"))


@pytest.fixture
def own(kind: str, tmp_path: Path) -> Iterator[S3Server]:
    """Give a server that the test may kill."""
    yield from _started(kind, tmp_path / "server")


def _started(kind: str, folder: Path) -> Iterator[S3Server]:
    made = server_of(kind, folder).start()
    yield made
    made.kill()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Give a file of four parts and a bit."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(4 * PART + 12_345))
    return path
