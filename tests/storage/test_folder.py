"""The folder store: whole or absent, and never outside its folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rung.storage import FolderStore, ObjectDamaged, ObjectError, ObjectStore, open_store
from rung.storage.checkpoint.digest import digest_file
from storage.conformance import ObjectStoreContract


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """An empty store."""
    return FolderStore(tmp_path / "objects")


class TestContract(ObjectStoreContract):
    """What holds for every store."""


def test_no_empty_folder_stays(store: FolderStore) -> None:
    """A folder goes with the last object below it."""
    store.put_bytes("a/x/1", b"1")
    store.put_bytes("a/y", b"1")
    store.delete("a/x/")
    assert not (store.root / "a" / "x").exists()


def test_nobody_else_can_read_it(store: FolderStore) -> None:
    """A folder has no URLs for others."""
    shared: ObjectStore = store
    assert shared.presign("x", 60) is None


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


def test_links_below_an_experiment_lead_nowhere(tmp_path: Path, store: FolderStore) -> None:
    """What a run may write is never the way to what it may not: to read, to list, to delete."""
    other = "checkpoints/other/other.0.1.5"
    store.put_bytes(f"{other}/state", b"precious")
    (tmp_path / "secret").write_bytes(b"token")
    own = store.root / "checkpoints" / "own"
    (own / "own.0.1.2").mkdir(parents=True)
    (own / "own.0.1.1").symlink_to("../other/other.0.1.5")
    (own / "own.0.1.2" / "inner").symlink_to("../../other")
    (own / "own.0.1.2" / "leak").symlink_to(tmp_path / "secret")
    for name in ("own.0.1.1/state", "own.0.1.2/inner/other.0.1.5/state", "own.0.1.2/leak"):
        for call in (store.read, store.version, lambda name: store.get(name, tmp_path / "copy")):
            with pytest.raises(ObjectDamaged, match="is no file of its own"):
                call(f"checkpoints/own/{name}")
    for name in ("own.0.1.1/state", "own.0.1.2/inner/other.0.1.5/state"):
        assert not store.link("checkpoints/own/own.0.1.3/x", f"checkpoints/own/{name}")
    with pytest.raises(ObjectError, match="cannot write"):
        store.put_bytes("checkpoints/own/own.0.1.1/state", b"mine")
    links = [f"checkpoints/own/own.0.1.{name}" for name in ("1", "2/inner", "2/leak")]
    assert [info.name for info in store.list("checkpoints/own/")] == links
    assert store.delete("checkpoints/own/own.0.1.1/") == 0
    assert store.delete("checkpoints/own/own.0.1.2/") == 2
    assert store.delete("checkpoints/own/") == 1
    assert store.read(f"{other}/state") == b"precious"
    assert (tmp_path / "secret").read_bytes() == b"token"


def test_the_first_folders_may_be_on_another_disk(tmp_path: Path, store: FolderStore) -> None:
    """Whoever runs the store may have moved an experiment, or all checkpoints, and left a link."""
    (tmp_path / "disk" / "exp").mkdir(parents=True)
    (store.root / "checkpoints").symlink_to(tmp_path / "disk")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "disk" / "moved").symlink_to(tmp_path / "elsewhere")
    for experiment in ("exp", "moved"):
        name = f"checkpoints/{experiment}/c/state"
        store.put_bytes(name, b"1")
        assert store.read(name) == b"1"
        for prefix in ("", name, f"checkpoints/{experiment}/"):
            assert [info.name for info in store.list(prefix)] == [name]
        assert store.delete(name) == 1
        assert store.list("") == []


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_not_waited_for(store: FolderStore) -> None:
    """A pipe in the place of an object is damage: to read it would hold up the reader for ever."""
    store.put_bytes("checkpoints/e/c/state", b"1")
    pipe = store.root / "checkpoints" / "e" / "c" / "manifest.json"
    os.mkfifo(pipe)
    with pytest.raises(ObjectDamaged, match="is no file of its own"):
        store.read("checkpoints/e/c/manifest.json")
    with pytest.raises(OSError, match="is no regular file"):
        digest_file(pipe)
    assert store.delete("checkpoints/e/") == 2
    assert not pipe.exists()


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
from rung.storage import FolderStore
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
