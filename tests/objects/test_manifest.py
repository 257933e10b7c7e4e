"""Checkpoints as objects: complete or not there, and every damage noticed and named."""

import hashlib
import json
from pathlib import Path

import pytest

from rung.objects import (
    FolderStore,
    ObjectDamaged,
    ObjectError,
    ObjectMissing,
    Provenance,
    StoredCheckpoint,
    delete_checkpoint,
    load_checkpoint,
    read_manifest,
    store_checkpoint,
)
from rung.objects.manifest import digest_of

FILES = {"model.pt": b"weights" * 100, "sub/state.json": b"{}", "empty": b""}
PREFIX = "checkpoints/exp/ckpt/"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """An empty store."""
    return FolderStore(tmp_path / "objects")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three files, one of them empty, one further down."""
    folder = tmp_path / "folder"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def stored(store: FolderStore, folder: Path) -> StoredCheckpoint:
    """Store the folder as `ckpt`."""
    return store_checkpoint(
        store,
        folder,
        checkpoint_id="ckpt",
        steps_completed=7,
        metadata={"note": "ü"},
        provenance=Provenance(
            experiment_id="exp", trial_id="exp.0", run=1, environment={"python": "3.11"}
        ),
    )


def test_a_checkpoint_comes_back_with_its_manifest(
    store: FolderStore, folder: Path, tmp_path: Path
) -> None:
    """The files and all that is known about them return from the store."""
    written = stored(store, folder)
    read = load_checkpoint(store, "exp", "ckpt", tmp_path / "back")
    assert read == written
    assert read.manifest.steps_completed == 7
    assert read.manifest.metadata == {"note": "ü"}
    assert read.manifest.size_bytes == 702
    assert sorted(read.manifest.files) == ["empty", "model.pt", "sub/state.json"]
    assert read.manifest.environment == digest_of({"python": "3.11"})
    for name, data in FILES.items():
        assert (tmp_path / "back" / name).read_bytes() == data


def test_the_manifest_is_written_last(store: FolderStore, folder: Path, tmp_path: Path) -> None:
    """Without its manifest a checkpoint does not exist, whatever files are there."""
    stored(store, folder)
    times = {info.name: (store.root / info.name).stat().st_mtime_ns for info in store.list(PREFIX)}
    assert max(times, key=lambda name: times[name]) == PREFIX + "manifest.json"
    (store.root / PREFIX / "manifest.json").unlink()
    with pytest.raises(ObjectMissing):
        load_checkpoint(store, "exp", "ckpt", tmp_path / "back")


def test_a_flipped_bit_anywhere_is_noticed_and_named(
    store: FolderStore, folder: Path, tmp_path: Path
) -> None:
    """One bit in a file is found by the file's digest, and the file is named."""
    stored(store, folder)
    for name in ("model.pt", "sub/state.json"):
        path = store.root / PREFIX / name
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        with pytest.raises(ObjectDamaged, match=rf"{name} has the digest"):
            load_checkpoint(store, "exp", "ckpt", tmp_path / "back")
        path.write_bytes(data)


def test_every_flipped_bit_of_the_manifest_is_noticed(store: FolderStore, folder: Path) -> None:
    """The manifest seals itself: no single changed bit is read as another truth."""
    stored(store, folder)
    path = store.root / PREFIX / "manifest.json"
    data = path.read_bytes()
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        with pytest.raises(ObjectDamaged, match=r"manifest\.json"):
            read_manifest(store, "exp", "ckpt")


def test_a_truncated_file_is_noticed_and_named(
    store: FolderStore, folder: Path, tmp_path: Path
) -> None:
    """The message tells both sizes."""
    stored(store, folder)
    path = store.root / PREFIX / "model.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ObjectDamaged, match=r"model\.pt has 100 bytes instead of 700"):
        load_checkpoint(store, "exp", "ckpt", tmp_path / "back")


def test_a_missing_file_is_noticed_and_named(
    store: FolderStore, folder: Path, tmp_path: Path
) -> None:
    """A file that the manifest promises and that is gone is damage, not absence."""
    stored(store, folder)
    (store.root / PREFIX / "empty").unlink()
    with pytest.raises(ObjectDamaged, match="empty is missing"):
        load_checkpoint(store, "exp", "ckpt", tmp_path / "back")


def test_a_manifest_of_a_newer_version_is_told_apart_from_damage(
    store: FolderStore, folder: Path
) -> None:
    """A newer format is nobody's fault, and the message says what to do."""
    stored(store, folder)
    path = store.root / PREFIX / "manifest.json"
    manifest = json.loads(path.read_bytes())["manifest"]
    manifest["format"] = 99
    body = json.dumps(manifest)
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"sha256":"{digest}","manifest":{body}}}')
    with pytest.raises(ObjectError, match="newer Rung"):
        read_manifest(store, "exp", "ckpt")


def test_a_deletion_can_be_repeated(store: FolderStore, folder: Path) -> None:
    """A second deletion finds nothing and does no harm."""
    stored(store, folder)
    assert delete_checkpoint(store, "exp", "ckpt") == 4
    assert delete_checkpoint(store, "exp", "ckpt") == 0
    assert store.list("") == []


def test_what_is_no_file_is_refused(store: FolderStore, folder: Path, tmp_path: Path) -> None:
    """A link to a folder would lose what it holds, so it is refused; one to a file is the file."""
    (folder / "linked").symlink_to(folder / "model.pt")
    stored(store, folder)
    assert store.read(PREFIX + "linked") == FILES["model.pt"]
    (folder / "away").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ObjectError, match="away"):
        stored(store, folder)


def test_the_name_of_the_manifest_is_taken(store: FolderStore, folder: Path) -> None:
    """A script's own manifest.json would be overwritten, so it is refused."""
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(ObjectError, match="rename it"):
        stored(store, folder)


def test_ids_cannot_climb_out(store: FolderStore) -> None:
    """Ids that name another place are refused before anything is touched."""
    for experiment, checkpoint in (("..", "x"), ("a/b", "x"), ("a", "../x"), ("a", "")):
        with pytest.raises(ObjectError):
            read_manifest(store, experiment, checkpoint)
