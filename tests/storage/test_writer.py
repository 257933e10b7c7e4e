"""Checkpoints while they are written: straight into the store, unchanged files once."""

from pathlib import Path

import pytest

from rung.storage import (
    CheckpointWriter,
    FolderStore,
    ObjectError,
    ObjectMissing,
    Provenance,
    StoredCheckpoint,
    delete_checkpoint,
    load_checkpoint,
    open_checkpoint,
    read_manifest,
)
from rung.storage.checkpoint.writer import Sink

ABOUT = Provenance(experiment_id="exp", trial_id="exp.0", run=1)
TABLE = b"table" * 100_000


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """An empty store."""
    return FolderStore(tmp_path / "objects")


def draft_of(
    store: FolderStore, name: str, previous: StoredCheckpoint | None, table: bytes = TABLE
) -> StoredCheckpoint:
    """Store a checkpoint of a table that may be unchanged and a file that names it."""
    writer = CheckpointWriter(store, "exp", name, previous)
    writer.write("table", lambda file: file.write(table), may_be_unchanged=True)
    writer.write("sub/name", lambda file: file.write(name.encode()))
    return writer.finish(steps_completed=1, metadata={}, provenance=ABOUT)


def inode(store: FolderStore, name: str) -> int:
    """Return what tells whether two names are one file."""
    return (store.root / "checkpoints" / "exp" / name).stat().st_ino


def test_files_are_written_in_pieces(store: FolderStore, tmp_path: Path) -> None:
    """What was written comes back, with its digest in the manifest."""
    written = draft_of(store, "a", None)
    assert load_checkpoint(store, "exp", "a", tmp_path / "back") == written
    assert (tmp_path / "back" / "table").read_bytes() == TABLE
    assert (tmp_path / "back" / "sub" / "name").read_bytes() == b"a"
    assert written.manifest.files["table"].blake3


def test_it_does_not_exist_before_it_is_sealed(store: FolderStore) -> None:
    """Without a manifest there is no checkpoint, and a writer that is given up leaves nothing."""
    writer = CheckpointWriter(store, "exp", "a")
    writer.write("x", lambda file: file.write(b"x"))
    with pytest.raises(ObjectMissing):
        read_manifest(store, "exp", "a")
    writer.discard()
    assert store.list("") == []


def test_an_unchanged_file_is_stored_once(store: FolderStore) -> None:
    """It is the previous checkpoint's under a second name; what changed is stored."""
    first = draft_of(store, "a", None)
    second = draft_of(store, "b", first)
    third = draft_of(store, "c", second, table=b"other")
    assert inode(store, "a/table") == inode(store, "b/table") != inode(store, "c/table")
    assert inode(store, "a/sub/name") != inode(store, "b/sub/name")
    assert (second.manifest.previous, third.manifest.previous) == ("a", "b")


def test_what_is_shared_outlives_each_of_its_checkpoints(
    store: FolderStore, tmp_path: Path
) -> None:
    """Deleted in any order, the others stay whole; with the last one the bytes go."""
    first = draft_of(store, "a", None)
    second = draft_of(store, "b", first)
    draft_of(store, "c", second)
    for gone, whole in (("a", ("b", "c")), ("b", ("c",)), ("c", ())):
        delete_checkpoint(store, "exp", gone)
        for name in whole:
            load_checkpoint(store, "exp", name, tmp_path / f"{gone}-{name}")
    assert store.list("") == []


def test_a_previous_checkpoint_that_is_gone_is_no_obstacle(
    store: FolderStore, tmp_path: Path
) -> None:
    """Deleted meanwhile, it shares nothing, and the new one is whole by itself."""
    first = draft_of(store, "a", None)
    delete_checkpoint(store, "exp", "a")
    draft_of(store, "b", first)
    load_checkpoint(store, "exp", "b", tmp_path / "back")


def test_a_file_system_without_links_stores_again(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharing saves space where it can, and is not needed."""
    monkeypatch.setattr(FolderStore, "link", lambda *_: False)
    draft_of(store, "b", draft_of(store, "a", None))
    assert inode(store, "a/table") != inode(store, "b/table")
    load_checkpoint(store, "exp", "b", tmp_path / "back")


def test_a_users_unchanged_file_is_shared_too(store: FolderStore, tmp_path: Path) -> None:
    """A folder's files are compared with the previous checkpoint's, if they are as large."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "same").write_bytes(TABLE)
    previous = None
    for name in ("a", "b"):
        (folder / "other").write_bytes(name.encode() * 1000)
        writer = CheckpointWriter(store, "exp", name, previous)
        writer.add(folder)
        previous = writer.finish(steps_completed=1, metadata={}, provenance=ABOUT)
    assert inode(store, "a/same") == inode(store, "b/same")
    assert inode(store, "a/other") != inode(store, "b/other")
    (folder / "same").write_bytes(b"changed by the user afterwards")
    load_checkpoint(store, "exp", "b", tmp_path / "back")


@pytest.mark.parametrize("name", ["manifest.json", ".held/x", ".uses/x", "../x", ""])
def test_names_of_rungs_own_are_refused(store: FolderStore, name: str) -> None:
    """No file may pass for the manifest or for a mark, or leave the folder."""
    with pytest.raises(ObjectError):
        CheckpointWriter(store, "exp", "a").write(name, lambda file: file.write(b""))


def test_a_writer_that_fails_leaves_no_file(store: FolderStore) -> None:
    """Half of a file is none."""

    def fail(file: Sink) -> None:
        file.write(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        CheckpointWriter(store, "exp", "a").write("x", fail)
    assert store.list("") == []


def test_a_checkpoint_is_opened_in_its_place(store: FolderStore, tmp_path: Path) -> None:
    """Of a folder's checkpoint nothing is copied, and everything compared."""
    written = draft_of(store, "a", None)
    opened = open_checkpoint(store, "exp", "a", tmp_path / "unused")
    assert opened.stored == written
    assert opened.paths["table"] == store.root / "checkpoints/exp/a/table"
    assert not (tmp_path / "unused").exists()


def test_permissions_and_empty_folders_come_back(store: FolderStore, tmp_path: Path) -> None:
    """A program can be run from the copy, and a folder that a tool expects is there."""
    folder = tmp_path / "folder"
    (folder / "logs" / "empty").mkdir(parents=True)
    for name, mode in (("run.sh", 0o755), ("key", 0o600), ("plain", 0o644)):
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    writer = CheckpointWriter(store, "exp", "a")
    writer.add(folder)
    writer.finish(steps_completed=1, metadata={}, provenance=ABOUT)
    load_checkpoint(store, "exp", "a", tmp_path / "back")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "back").glob("*")}
    assert (modes["run.sh"], modes["key"], modes["plain"]) == (0o755, 0o600, 0o644)
    assert (tmp_path / "back" / "logs" / "empty").is_dir()
