"""The folder store: whole or absent, and never outside its folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rung.objects import FolderStore, ObjectError, ObjectInfo, ObjectMissing, open_store


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """An empty store."""
    return FolderStore(tmp_path / "objects")


def test_what_was_put_is_read_back(store: FolderStore, tmp_path: Path) -> None:
    """Bytes and files come back as they went in, and a later write replaces an earlier one."""
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 << 20))
    store.put("code/a.tar.gz", source)
    store.put_bytes("code/b", b"first")
    store.put_bytes("code/b", b"second")
    store.get("code/a.tar.gz", tmp_path / "new" / "target")
    assert (tmp_path / "new" / "target").read_bytes() == source.read_bytes()
    assert store.read("code/b") == b"second"


def test_a_missing_object_is_named(store: FolderStore, tmp_path: Path) -> None:
    """Reading what is not there says what is not there, and leaves no empty target."""
    with pytest.raises(ObjectMissing, match="code/none"):
        store.read("code/none")
    with pytest.raises(ObjectMissing, match="code/none"):
        store.get("code/none", tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../up",
        "a/../../up",
        "a/./b",
        "a//b",
        "a/",
        "a\\..\\b",
        "a\0b",
        "a\nb",
        ".incoming/x",
        "x" * 1025,
        "\ud800",
    ],
)
def test_a_name_that_could_climb_out_is_refused(store: FolderStore, name: str) -> None:
    """No name reaches outside the store, whichever way it is used."""
    with pytest.raises(ObjectError, match="object"):
        store.put_bytes(name, b"")
    with pytest.raises(ObjectError, match="object"):
        store.read(name)


def test_listing_and_deleting_go_by_prefix(store: FolderStore) -> None:
    """A prefix stands for the names that begin with it, also in the middle of a part."""
    for name in ("a/x/1", "a/x/2", "a/xy", "b"):
        store.put_bytes(name, name.encode())
    assert [info.name for info in store.list("")] == ["a/x/1", "a/x/2", "a/xy", "b"]
    assert store.list("a/x/") == [ObjectInfo("a/x/1", 5), ObjectInfo("a/x/2", 5)]
    assert [info.name for info in store.list("a/x")] == ["a/x/1", "a/x/2", "a/xy"]
    assert store.list("none/") == []
    assert store.delete("a/x/") == 2
    assert store.delete("a/x/") == 0
    assert [info.name for info in store.list("")] == ["a/xy", "b"]
    assert not (store.root / "a" / "x").exists()


def test_deleting_everything_by_mistake_is_refused(store: FolderStore) -> None:
    """The empty prefix is no prefix for a deletion."""
    with pytest.raises(ObjectError, match="every object"):
        store.delete("")


def test_a_prefix_that_climbs_out_is_refused(store: FolderStore) -> None:
    """Neither listing nor deleting leaves the store."""
    for prefix in ("../", "/etc/", "a/../../"):
        with pytest.raises(ObjectError, match="prefix"):
            store.list(prefix)
        with pytest.raises(ObjectError, match="prefix"):
            store.delete(prefix)


def test_its_url_opens_it_again(tmp_path: Path) -> None:
    """A store is found again by its URL, also with odd letters in its path."""
    store = FolderStore(tmp_path / "a b%20ü")
    store.put_bytes("x", b"1")
    assert open_store(store.url).read("x") == b"1"


@pytest.mark.parametrize("url", ["gs://bucket", "/srv/x", "file:", "file://host/x", ""])
def test_an_unknown_url_is_refused_with_an_example(url: str) -> None:
    """What cannot be opened is refused with an address that could."""
    with pytest.raises(ObjectError, match="file:///srv"):
        open_store(url)


def test_a_store_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    """A file where the folder should be is told apart from a missing object."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ObjectError, match="cannot open"):
        FolderStore(tmp_path / "file")


def test_old_leftovers_are_swept_and_new_ones_left(store: FolderStore) -> None:
    """What a killed writer left goes a day later; what may still be written stays."""
    old, new = store.root / ".incoming" / "old", store.root / ".incoming" / "new"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    FolderStore(store.root)
    assert not old.exists()
    assert new.exists()


_WRITER = """
import sys
from pathlib import Path
from rung.objects import FolderStore
store = FolderStore(Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    number += 1
    store.put_bytes("big/object", bytes([number % 256]) * (4 << 20))
    print(number, flush=True)
"""


@pytest.mark.parametrize("delay_ms", [0, 3, 7, 13, 21])
def test_a_writer_killed_at_any_moment_leaves_a_whole_object(
    tmp_path: Path, delay_ms: int
) -> None:
    """After SIGKILL the object is the old one or the new one, never half, never a mixture."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        first = writer.stdout.readline()
        deadline = time.monotonic() + delay_ms / 1000
        while time.monotonic() < deadline:
            pass
        writer.send_signal(signal.SIGKILL)
        acknowledged = int(([first, *writer.stdout.read().split()])[-1])
    data = FolderStore(tmp_path).read("big/object")
    assert len(data) == 4 << 20
    assert data == data[:1] * len(data)
    assert data[0] in {acknowledged % 256, (acknowledged + 1) % 256}
    assert [info.name for info in FolderStore(tmp_path).list("")] == ["big/object"]
