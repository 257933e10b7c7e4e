"""What goes wrong with S3 is said in words, and within bounded time."""

import datetime as dt
import threading
from pathlib import Path

import minio.time
import pytest

from rung.storage import ObjectError, ObjectUnavailable
from rung.storage.s3.settings import from_environment
from rung.storage.s3.store import S3Store
from servers.s3 import S3Server
from storage.s3.bucket import open_at
from storage.s3.proxy import Proxy

pytestmark = pytest.mark.stores


def test_a_server_that_stalls_is_given_up_and_found_again(own: S3Server) -> None:
    """A stopped server costs bounded time; afterwards everything goes on."""
    store = open_at(own, RUNG_S3_TIMEOUT_S="3", RUNG_S3_PATIENCE_S="3")
    store.put_bytes("x", b"1")
    own.pause()
    try:
        with pytest.raises(ObjectUnavailable, match="does not answer"):
            store.read("x")
    finally:
        own.resume()
    assert store.read("x") == b"1"


def test_a_server_that_is_not_there(server: S3Server) -> None:
    """A closed port is named, and worth trying again later."""
    store = open_at(server, RUNG_S3_ENDPOINT="http://127.0.0.1:1", RUNG_S3_PATIENCE_S="0")
    with pytest.raises(ObjectUnavailable, match=r"does not answer: .*refused"):
        store.put_bytes("x", b"1")


def test_closing_ends_what_is_being_tried(server: S3Server) -> None:
    """A shutdown does not wait for the patience of a thread."""
    store = open_at(server, RUNG_S3_ENDPOINT="http://127.0.0.1:1", RUNG_S3_PATIENCE_S="600")
    caught: list[BaseException] = []

    def write() -> None:
        try:
            store.put_bytes("x", b"1")
        except ObjectUnavailable as error:
            caught.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    store.close()
    thread.join(20)
    assert not thread.is_alive()
    assert "closed" in str(caught[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "does not know this AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "AWS_SECRET_ACCESS_KEY does not belong"),
    ],
)
def test_wrong_keys(server: S3Server, changes: dict[str, str], message: str) -> None:
    """The variable that is wrong is named, at once, whatever is asked for."""
    store = open_at(server, RUNG_S3_PATIENCE_S="600", **changes)
    for ask in (
        lambda: store.read("x"),
        lambda: store.list(""),
        lambda: store.delete("x"),
        lambda: store.put_bytes("x", b""),
    ):
        with pytest.raises(ObjectError, match=message):
            ask()


def test_keys_that_are_being_replaced(tmp_path: Path, server: S3Server) -> None:
    """Between the first and the second file of new keys, or while one is empty, it waits."""
    right, file = server.environment["AWS_SECRET_ACCESS_KEY"], tmp_path / "secret"
    key = server.environment["AWS_ACCESS_KEY_ID"]
    (tmp_path / "key").write_text(key)
    given = {"AWS_ACCESS_KEY_ID_FILE": str(tmp_path / "key")}
    given |= {"AWS_SECRET_ACCESS_KEY_FILE": str(file)}
    store = open_at(server, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="", **given)
    for wrong in ("", "the key before"):
        file.write_text(wrong)
        replace = threading.Timer(0.5, file.write_text, [right])
        replace.start()
        store.put_bytes("x", b"1")
        replace.join()
    file.write_text("wrong for good")
    with pytest.raises(ObjectError, match="AWS_SECRET_ACCESS_KEY does not belong"):
        store.read("x")


def test_a_bucket_that_is_not_there(server: S3Server) -> None:
    """The message says who makes it."""
    store = S3Store("s3://no-such-bucket", from_environment(server.environment))
    with pytest.raises(ObjectError, match="`rung cluster init` makes it"):
        store.read("x")


def test_a_clock_that_is_wrong(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused signature for an hour's difference is told as such, with the difference."""
    now = minio.time.utcnow
    monkeypatch.setattr(minio.time, "utcnow", lambda: now() - dt.timedelta(hours=1))
    with pytest.raises(ObjectError, match="clock and the server's differ"):
        open_at(server).read("x")


def test_what_answers_is_no_s3(tmp_path: Path, server: S3Server) -> None:
    """Another server at the address is told apart from one that is away."""
    with Proxy(server.endpoint) as proxy:
        proxy.speak(
            b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"
        )
        store = open_at(server, RUNG_S3_ENDPOINT=proxy.endpoint)
        with pytest.raises(ObjectError, match="is no S3 server"):
            store.read("x")
