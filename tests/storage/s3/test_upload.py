"""Uploads to a real server: cut, resumed, damaged, and never half there."""

from pathlib import Path

import pytest

from rung.storage import ObjectMissing, ObjectUnavailable
from rung.storage.s3.client import Digest
from rung.storage.s3.store import S3Store
from servers.s3 import S3Server
from storage.s3.bucket import PART, open_at
from storage.s3.proxy import Proxy

pytestmark = pytest.mark.stores


def test_a_server_killed_in_the_middle_of_an_upload(
    own: S3Server, large: Path, tmp_path: Path
) -> None:
    """The upload fails within bounds; after a restart it goes on with the parts that arrived."""
    with Proxy(own.endpoint) as proxy:
        store = open_at(own, RUNG_S3_ENDPOINT=proxy.endpoint, RUNG_S3_PARALLEL="1")
        proxy.after_bodies(3, own.kill)
        with pytest.raises(ObjectUnavailable, match="does not answer"):
            store.put("large", large)
        own.start()
        with pytest.raises(ObjectMissing):
            store.read("large")
        ((key, upload),) = store.bucket.uploads("large")
        there = len(store.bucket.parts(key, upload))
        assert there in {2, 3}
        proxy.bodies.clear()
        store.put("large", large)
        assert len([size for size in proxy.bodies if size > 10_000]) == 5 - there
        store.get("large", tmp_path / "back")
        assert store.bucket.uploads("large") == []
    assert (tmp_path / "back").read_bytes() == large.read_bytes()


def test_what_was_acknowledged_outlives_a_kill(own: S3Server, large: Path, tmp_path: Path) -> None:
    """A server killed right after an answer has the object when it is back."""
    store = open_at(own)
    store.put("large", large)
    store.put_bytes("small", b"1")
    own.restart()
    store.get("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
    assert store.read("small") == b"1"


def test_a_writer_that_died_left_parts_that_are_used(store: S3Store, large: Path) -> None:
    """Parts of the same bytes stay; an upload of other bytes is left to whoever makes it."""
    key = store.prefix + "large"
    data = large.read_bytes()
    others, ours = store.bucket.begin_upload(key), store.bucket.begin_upload(key)
    for upload, number, part in (
        (ours, 2, data[PART : 2 * PART]),
        (others, 1, data[5 : PART + 5]),
    ):
        store.bucket.put_part(key, upload, number, part, Digest(part))
    store.put("large", large)
    assert store.read("large") == data
    assert [upload for _, upload in store.bucket.uploads(key)] == [others]
    store.delete("large")
    assert store.bucket.uploads(key) == []


def test_an_object_that_is_there_already_is_not_sent_again(
    server: S3Server, prefix: str, large: Path
) -> None:
    """After a crash between an upload's end and its record, the repetition costs no transfer."""
    with Proxy(server.endpoint) as proxy:
        store = open_at(server, prefix, RUNG_S3_ENDPOINT=proxy.endpoint)
        store.put("large", large)
        proxy.bodies.clear()
        store.put("large", large)
        assert sum(proxy.bodies) < 10_000


def test_a_part_damaged_on_its_way_is_refused_and_sent_again(
    server: S3Server, prefix: str, large: Path
) -> None:
    """The server compares each body with its digest; one flipped bit costs one repetition."""
    with Proxy(server.endpoint) as proxy:
        store = open_at(server, prefix, RUNG_S3_ENDPOINT=proxy.endpoint)
        proxy.damage(2)
        store.put("large", large)
        store.put_bytes("small", b"x" * 100_000)
        assert proxy.damaged == 2
        assert store.read("large") == large.read_bytes()


def test_damage_without_end_is_refused(server: S3Server, prefix: str) -> None:
    """A line that damages everything stores nothing, and the error says so."""
    with Proxy(server.endpoint) as proxy:
        store = open_at(server, prefix, RUNG_S3_ENDPOINT=proxy.endpoint)
        proxy.damage(1_000)
        with pytest.raises(ObjectUnavailable, match="BadDigest"):
            store.put_bytes("small", b"x" * 100_000)
    assert open_at(server, prefix).list("") == []
