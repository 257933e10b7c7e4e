"""Data in S3, on a real server."""

import os
import secrets
from pathlib import Path

import pytest

from rung.cache import (
    Cache,
    DataChanged,
    DataError,
    DataUnavailable,
    Held,
    Origin,
    Source,
    origin_of,
)
from rung.cache.s3_origin import settings_of
from rung.storage.s3.settings import from_environment
from rung.storage.s3.store import S3Store
from servers.seaweed import Seaweed

QUICK = {"RUNG_S3_PART_MIB": "5", "RUNG_S3_TIMEOUT_S": "20", "RUNG_S3_PATIENCE_S": "2"}


class Bucket:
    """A prefix of the server's bucket, and a cache."""

    def __init__(self, server: Seaweed, folder: Path) -> None:
        self.environment = server.environment | QUICK
        self.url = f"{server.url}/{secrets.token_hex(8)}"
        self.store = S3Store(self.url, from_environment(self.environment))
        self.cache = Cache(folder / "cache", 1 << 30)

    def origin(self, below: str = "") -> Origin:
        """Return the origin of what lies there."""
        return origin_of(Source("train", f"{self.url}{below}"), self.environment)

    def filled(self, origin: Origin) -> tuple[Held, int]:
        """Bring a source."""
        held = self.cache.reserve([origin.list()])
        return held, self.cache.fill(held, 0, origin).run()


@pytest.fixture
def bucket(seaweed: Seaweed, tmp_path: Path) -> Bucket:
    """Give an empty prefix."""
    return Bucket(seaweed, tmp_path)


def test_a_prefix_becomes_a_folder(bucket: Bucket) -> None:
    """Objects below it are files; what begins with the same letters is another source's."""
    bucket.store.put_bytes("train/a", b"one")
    bucket.store.put_bytes("train/deep/b", b"")
    bucket.store.put_bytes("train2/c", b"no")
    held, brought = bucket.filled(bucket.origin("/train"))
    root = held.roots[0]
    found = {
        p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()
    }
    assert found == {"a": b"one", "deep/b": b""}
    assert brought == 2
    assert bucket.filled(bucket.origin("/train/"))[1] == 0


def test_an_object_becomes_a_file(bucket: Bucket) -> None:
    """A source that names an object is that file."""
    bucket.store.put_bytes("train/a.csv", b"1,2")
    held, _ = bucket.filled(bucket.origin("/train/a.csv"))
    assert (held.roots[0].name, held.roots[0].read_bytes()) == ("a.csv", b"1,2")


def test_overlapping_prefixes_share(bucket: Bucket) -> None:
    """What one source brought, another that holds the same object need not bring."""
    bucket.store.put_bytes("all/train/a", b"one")
    bucket.filled(bucket.origin("/all"))
    assert bucket.filled(bucket.origin("/all/train"))[1] == 0
    assert bucket.filled(bucket.origin("/all/train/a"))[1] == 0


def test_a_large_object_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    """Parts that travel side by side make the file that was put."""
    content = os.urandom((40 << 20) + 12_345)
    (tmp_path / "large").write_bytes(content)
    bucket.store.put("large", tmp_path / "large")
    held, _ = bucket.filled(bucket.origin("/large"))
    assert held.roots[0].read_bytes() == content


def test_an_object_that_was_replaced(bucket: Bucket) -> None:
    """The version that was listed is brought, or none; a new listing has the new one."""
    bucket.store.put_bytes("train/a", b"one")
    origin = bucket.origin("/train")
    held = bucket.cache.reserve([origin.list()])
    bucket.store.put_bytes("train/a", b"two")
    with pytest.raises(DataChanged, match="is not what was listed"):
        bucket.cache.fill(held, 0, origin).run()
    assert not (held.roots[0] / "a").exists()
    again, _ = bucket.filled(origin)
    assert (again.roots[0] / "a").read_bytes() == b"two"


def test_an_object_that_is_gone(bucket: Bucket) -> None:
    """It is a change of the source, not a failure of its own."""
    bucket.store.put_bytes("train/a", b"one")
    origin = bucket.origin("/train")
    held = bucket.cache.reserve([origin.list()])
    bucket.store.delete("train/a")
    with pytest.raises(DataChanged):
        bucket.cache.fill(held, 0, origin).run()


def test_an_etag_that_is_no_digest(bucket: Bucket) -> None:
    """What comes twice alike is taken, although its ETag looks like another MD5."""
    bucket.store.put_bytes("train/a", b"one")
    origin = bucket.origin("/train")
    listing = origin.list()
    assert len(listing.entries[0].md5) == 32
    wrong = [entry._replace(md5="0" * 32) for entry in listing.entries]
    held = bucket.cache.reserve([type(listing)(listing.place, listing.single, wrong)])
    assert bucket.cache.fill(held, 0, origin).run() == 1
    assert (held.roots[0] / "a").read_bytes() == b"one"


def test_nothing_there(bucket: Bucket) -> None:
    """A prefix without objects is refused with its name."""
    with pytest.raises(DataError, match=r"data source train: s3://.*/none: there is nothing"):
        bucket.origin("/none").list()


def test_a_server_that_is_away(tmp_path: Path) -> None:
    """What has come stays, the failure may pass, and the next try goes on."""
    with Seaweed(tmp_path / "server") as server:
        bucket = Bucket(server, tmp_path)
        bucket.environment |= {"RUNG_S3_PATIENCE_S": "0.3", "RUNG_S3_TIMEOUT_S": "3"}
        bucket.store.put_bytes("train/a", b"one")
        origin = bucket.origin("/train")
        held = bucket.cache.reserve([origin.list()])
        server.kill()
        fill = bucket.cache.fill(held, 0, origin)
        with pytest.raises(DataUnavailable) as away:
            fill.run()
        assert away.value.retriable
        assert not held.trees[0].failure
        server.start()
        assert fill.run() == 1


def test_keys_of_the_caches_own() -> None:
    """`RUNG_CACHE_…` goes before the variable of that name, and takes no other's place."""
    found = settings_of(
        {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY_FILE": "/file",
            "RUNG_S3_REGION": "x",
            "RUNG_CACHE_AWS_ACCESS_KEY_ID": "b",
            "RUNG_CACHE_AWS_SECRET_ACCESS_KEY": "c",
            "RUNG_CACHE_S3_ENDPOINT": "http://data:9000",
        }
    )
    assert found == {
        "AWS_ACCESS_KEY_ID": "b",
        "AWS_SECRET_ACCESS_KEY": "c",
        "RUNG_S3_REGION": "x",
        "RUNG_S3_ENDPOINT": "http://data:9000",
    }


def test_a_missing_key_is_named() -> None:
    """Without keys a source on a server of one's own is refused before that is asked.

    On AWS itself the machine's or the workload's identity may do without.
    """
    server = {"RUNG_S3_ENDPOINT": "http://127.0.0.1:1"}
    with pytest.raises(DataError, match=r"data source train: .*AWS_ACCESS_KEY_ID is not set"):
        origin_of(Source("train", "s3://bucket/x"), server)
    origin_of(Source("train", "s3://bucket/x"), {})
