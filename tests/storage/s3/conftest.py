"""A server to kill, a store of one's own, a file of several parts."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung.storage.s3.store import S3Store
from servers import minio
from servers.minio import Minio
from servers.s3 import S3Server
from servers.seaweed import Seaweed
from storage.s3.bucket import PART, open_at

Kind = type[Seaweed | Minio]

KINDS: dict[str, Kind] = {"SeaweedFS": Seaweed, "MinIO": Minio}


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


@pytest.fixture(scope="session", params=KINDS.values(), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Give each kind of server that is there."""
    found: Kind = request.param
    if found is Minio and (lacking := minio.missing()):
        pytest.skip(lacking)
    return found


@pytest.fixture(scope="session")
def server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Give a server of each kind; tests keep to prefixes of their own."""
    yield from _started(kind, tmp_path_factory.mktemp("s3"))


@pytest.fixture
def own(kind: Kind, tmp_path: Path) -> Iterator[S3Server]:
    """Give a server that the test may kill."""
    yield from _started(kind, tmp_path / "server")


def _started(kind: Kind, folder: Path) -> Iterator[S3Server]:
    made = kind(folder).start()
    yield made
    made.kill()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Give a file of four parts and a bit."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(4 * PART + 12_345))
    return path
