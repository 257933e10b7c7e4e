"""The store in S3, on a real server: its URLs, its encryption, its pages."""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import minio.time
import pytest
import urllib3

from rung.storage import ObjectError, open_store
from rung.storage.s3.settings import from_environment
from rung.storage.s3.store import S3Store
from servers.minio import Minio
from servers.s3 import S3Server
from servers.seaweed import Seaweed
from storage.conformance import ObjectStoreContract
from storage.s3.bucket import PART, open_at
from storage.s3.proxy import Proxy

pytestmark = pytest.mark.stores

KEY = "a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="


class TestContract(ObjectStoreContract):
    """What holds for every store."""


def test_a_large_file_travels_in_parts_both_ways(
    store: S3Store, large: Path, tmp_path: Path
) -> None:
    """Five parts become one object, whose ranges become the file again."""
    store.put("large", large)
    assert store.bucket.etag(store.prefix + "large").endswith("-5")
    store.get("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
    assert store.read("large", 4 * PART - 5, 10) == large.read_bytes()[4 * PART - 5 :][:10]
    assert store.bucket.uploads(store.prefix) == []


def fetch(url: str | None, **headers: str) -> tuple[int, bytes]:
    """Return status and body of what is at an URL, asked for without keys."""
    assert url is not None
    answer = urllib3.request("GET", url, headers=headers, timeout=10)
    return answer.status, answer.data


def test_an_url_for_anybody(store: S3Store) -> None:
    """It works without keys, for this object alone, and in ranges."""
    store.put_bytes("x y", b"0123456789")
    url = store.presign("x y", 60)
    assert url is not None
    assert fetch(url) == (200, b"0123456789")
    assert fetch(url, Range="bytes=3-5") == (206, b"345")
    assert fetch(url.replace("x%20y", "z"))[0] == 403
    assert fetch(url.partition("?")[0])[0] == 403


def test_an_url_expires(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose time is over is refused."""
    store.put_bytes("x", b"1")
    now = minio.time.utcnow
    monkeypatch.setattr(minio.time, "utcnow", lambda: now() - dt.timedelta(seconds=90))
    fresh, stale = store.presign("x", 300), store.presign("x", 60)
    assert fetch(fresh) == (200, b"1")
    assert fetch(stale)[0] == 403


def test_an_url_names_the_server_as_users_know_it(server: S3Server) -> None:
    """Inside a cluster the server has another name than outside."""
    public = "https://objects.example.org"
    url = open_at(server, RUNG_S3_PUBLIC_ENDPOINT=public).presign("x", 60)
    assert url is not None
    assert url.startswith(f"{public}/rung/x?")


def test_the_url_of_a_store_opens_it_again(
    store: S3Store, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the environment it is all that is needed."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    store.put_bytes("x", b"1")
    assert open_store(store.url).read("x") == b"1"
    odd = S3Store("s3://rung/a%20b/ü", from_environment(server.environment))
    assert S3Store(odd.url, from_environment(server.environment)).prefix == "a b/ü/"


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///x", "s3://Upper", "s3://key:secret@bucket", "s3://a/../b", "s3://b?x=1"],
)
def test_an_url_that_is_none(server: S3Server, url: str) -> None:
    """It is refused before anything is asked."""
    with pytest.raises(ObjectError, match="object"):
        S3Store(url, from_environment(server.environment))


def test_stores_of_different_prefixes_do_not_see_each_other(server: S3Server, prefix: str) -> None:
    """A prefix ends at a slash."""
    one, two = open_at(server, f"{prefix}/a"), open_at(server, f"{prefix}/ab")
    one.put_bytes("x", b"1")
    two.put_bytes("x", b"2")
    assert one.delete("x") == 1
    assert two.read("x") == b"2"
    assert one.list("") == []


def test_many_objects_are_listed_and_deleted_in_pages(store: S3Store, prefix: str) -> None:
    """A thousand is what one request lists and deletes; there may be more."""
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: store.put_bytes(f"n/{n:04}", b""), range(1_010)))
    assert [info.name for info in store.list("n/")] == [f"n/{n:04}" for n in range(1_010)]
    assert store.delete("n/") == 1_010
    assert store.list("") == []


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"RUNG_S3_SSE": "s3"}, ("x-amz-server-side-encryption", "AES256")),
        (
            {"RUNG_S3_SSE": "customer", "RUNG_S3_SSE_KEY": KEY},
            ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ),
    ],
)
def test_the_server_encrypts(
    server: S3Server,
    kind: type[S3Server],
    prefix: str,
    large: Path,
    tmp_path: Path,
    *,
    settings: dict[str, str],
    header: tuple[str, str],
) -> None:
    """Small and large objects are written so that the server says it encrypted, and come back.

    MinIO takes keys of ours over TLS alone, and says so.
    """
    with Proxy(server.endpoint) as proxy:
        store = open_at(server, prefix, RUNG_S3_ENDPOINT=proxy.endpoint, **settings)
        if kind is Minio and settings["RUNG_S3_SSE"] == "customer":
            with pytest.raises(ObjectError, match="over a secure connection"):
                store.put_bytes("small", b"1")
            return
        store.put_bytes("small", b"1")
        assert f"{header[0]}: {header[1]}".lower() in proxy.answers.lower()
        proxy.forget_answers()
        store.put("large", large)
        assert f"{header[0]}: {header[1]}".lower() in proxy.answers.lower()
        assert store.read("small") == b"1"
        store.get("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large.read_bytes()


def test_a_key_of_ours_is_needed_to_read_and_never_handed_out(
    seaweed: Seaweed, prefix: str
) -> None:
    """Without the customer's key the server gives nothing; no URL would work, so there is none."""
    store = open_at(seaweed, prefix, RUNG_S3_SSE="customer", RUNG_S3_SSE_KEY=KEY)
    store.put_bytes("x", b"1")
    with pytest.raises(ObjectError):
        open_at(seaweed, prefix).read("x")
    assert store.presign("x", 60) is None


def test_the_key_of_a_key_service_is_named(server: S3Server) -> None:
    """The request for SSE-KMS carries algorithm and key id (this server has no key service)."""
    store = open_at(server, RUNG_S3_SSE="kms", RUNG_S3_SSE_KEY="alias/rung")
    assert store.bucket.encryption() == {
        "X-Amz-Server-Side-Encryption": "aws:kms",
        "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "alias/rung",
    }


def test_keys_in_files_are_read_again(server: S3Server, tmp_path: Path, prefix: str) -> None:
    """A rotated key works without a restart."""
    environment = dict(server.environment)
    (tmp_path / "secret").write_text("not yet\n")
    del environment["AWS_SECRET_ACCESS_KEY"]
    environment["AWS_SECRET_ACCESS_KEY_FILE"] = str(tmp_path / "secret")
    store = S3Store(f"{server.url}/{prefix}", from_environment(environment))
    with pytest.raises(ObjectError, match="does not belong"):
        store.put_bytes("x", b"1")
    (tmp_path / "secret").write_text(server.environment["AWS_SECRET_ACCESS_KEY"] + "\n")
    store.put_bytes("x", b"1")
    (tmp_path / "secret").unlink()
    with pytest.raises(ObjectError, match="AWS_SECRET_ACCESS_KEY_FILE"):
        store.read("x")


def test_an_url_of_an_object_in_an_area(store: S3Store) -> None:
    """It leads to that one, not to the one of the same name outside."""
    store.put_bytes("checkpoints/e/c/x", b"out")
    area = store.area("vision")
    area.put_bytes("checkpoints/e/c/x", b"in")
    assert fetch(area.presign("checkpoints/e/c/x", 60)) == (200, b"in")
    assert area.url == f"{store.url}/areas/vision"
    assert store.bucket is area.bucket
