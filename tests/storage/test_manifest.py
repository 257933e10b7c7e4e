"""Checkpoints as objects: complete or not there, and every damage noticed and named."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rung.storage import (
    FolderStore,
    ObjectDamaged,
    ObjectError,
    ObjectMissing,
    ObjectStore,
    Provenance,
    StoredCheckpoint,
    copy_checkpoint,
    delete_checkpoint,
    load_checkpoint,
    read_manifest,
    store_checkpoint,
)
from rung.storage.checkpoint import manifest
from rung.storage.checkpoint.manifest import digest_of
from storage.s3.bucket import open_at

FILES = {"model.pt": b"weights" * 100, "sub/state.json": b"{}", "empty": b""}
PREFIX = "checkpoints/exp/ckpt/"


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store, of either kind."""
    if request.param == "folder":
        return FolderStore(tmp_path / "objects")
    prefix = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    return open_at(request.getfixturevalue("seaweed"), prefix)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three files, one of them empty, one further down."""
    folder = tmp_path / "folder"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def stored(store: ObjectStore, folder: Path) -> StoredCheckpoint:
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
    store: ObjectStore, folder: Path, tmp_path: Path
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


def test_the_manifest_is_written_last(
    store: ObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its manifest a checkpoint does not exist, whatever files are there."""
    there: list[str] = []
    put_bytes = store.put_bytes

    def watch(name: str, data: bytes) -> None:
        there.extend(info.name for info in store.list(PREFIX))
        put_bytes(name, data)

    monkeypatch.setattr(store, "put_bytes", watch)
    stored(store, folder)
    assert there == sorted(PREFIX + name for name in FILES)
    store.delete(PREFIX + "manifest.json")
    with pytest.raises(ObjectMissing):
        load_checkpoint(store, "exp", "ckpt", tmp_path / "back")


def test_a_flipped_bit_anywhere_is_noticed_and_named(
    store: ObjectStore, folder: Path, tmp_path: Path
) -> None:
    """One bit in a file is found by the file's digest, and the file is named."""
    stored(store, folder)
    for name in ("model.pt", "sub/state.json"):
        data = store.read(PREFIX + name)
        store.put_bytes(PREFIX + name, bytes([data[0] ^ 1]) + data[1:])
        with pytest.raises(ObjectDamaged, match=rf"{name} has the digest"):
            load_checkpoint(store, "exp", "ckpt", tmp_path / "back")
        store.put_bytes(PREFIX + name, data)


def test_every_flipped_bit_of_the_manifest_is_noticed(folder: Path, tmp_path: Path) -> None:
    """The manifest seals itself: no single changed bit is read as another truth."""
    store = FolderStore(tmp_path / "objects")
    stored(store, folder)
    path = store.root / PREFIX / "manifest.json"
    data = path.read_bytes()
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        with pytest.raises(ObjectDamaged, match=r"manifest\.json"):
            read_manifest(store, "exp", "ckpt")


def test_a_truncated_file_is_noticed_and_named(
    store: ObjectStore, folder: Path, tmp_path: Path
) -> None:
    """The message tells both sizes."""
    stored(store, folder)
    store.put_bytes(PREFIX + "model.pt", FILES["model.pt"][:100])
    with pytest.raises(ObjectDamaged, match=r"model\.pt has 100 bytes instead of 700"):
        load_checkpoint(store, "exp", "ckpt", tmp_path / "back")


def test_a_missing_file_is_noticed_and_named(
    store: ObjectStore, folder: Path, tmp_path: Path
) -> None:
    """A file that the manifest promises and that is gone is damage, not absence."""
    stored(store, folder)
    store.delete(PREFIX + "empty")
    with pytest.raises(ObjectDamaged, match="empty is missing"):
        load_checkpoint(store, "exp", "ckpt", tmp_path / "back")


@pytest.mark.parametrize("written", [1, 99])
def test_a_manifest_of_another_format_is_told_apart_from_damage(
    store: ObjectStore, folder: Path, written: int
) -> None:
    """Another format is nobody's fault, and the message names both."""
    stored(store, folder)
    manifest = json.loads(store.read(PREFIX + "manifest.json"))["manifest"]
    manifest["format"] = written
    body = json.dumps(manifest)
    digest = hashlib.sha256(body.encode()).hexdigest()
    sealed = f'{{"sha256":"{digest}","manifest":{body}}}'
    store.put_bytes(PREFIX + "manifest.json", sealed.encode())
    with pytest.raises(ObjectError, match=f"format {written} .* another Rung.* format 2"):
        read_manifest(store, "exp", "ckpt")


def test_a_deletion_can_be_repeated(store: ObjectStore, folder: Path) -> None:
    """A second deletion finds nothing and does no harm."""
    stored(store, folder)
    assert delete_checkpoint(store, "exp", "ckpt") == 4
    assert delete_checkpoint(store, "exp", "ckpt") == 0
    assert store.list("") == []


def test_what_is_no_file_is_refused(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    """A link to a folder would lose what it holds, so it is refused; one to a file is the file."""
    (folder / "linked").symlink_to(folder / "model.pt")
    stored(store, folder)
    assert store.read(PREFIX + "linked") == FILES["model.pt"]
    (folder / "away").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ObjectError, match="away"):
        stored(store, folder)


def test_the_name_of_the_manifest_is_taken(store: ObjectStore, folder: Path) -> None:
    """A script's own manifest.json would be overwritten, so it is refused."""
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(ObjectError, match="rename it"):
        stored(store, folder)


def test_a_checkpoint_is_copied_whole_its_manifest_last(
    store: ObjectStore, folder: Path, tmp_path: Path
) -> None:
    """In the other store it is the same, to the bit; a second time changes nothing."""
    source = FolderStore(tmp_path / "source")
    written = stored(source, folder)
    for _ in range(2):
        assert copy_checkpoint(source, store, "exp", "ckpt") == written
        assert load_checkpoint(store, "exp", "ckpt", tmp_path / "back") == written


def test_what_is_damaged_is_not_copied(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    """The file is named, and the other store has no such checkpoint."""
    source = FolderStore(tmp_path / "source")
    stored(source, folder)
    data = source.read(PREFIX + "model.pt")
    source.put_bytes(PREFIX + "model.pt", b"x" + data[1:])
    with pytest.raises(ObjectDamaged, match=r"model\.pt has the digest"):
        copy_checkpoint(source, store, "exp", "ckpt")
    source.delete(PREFIX + "model.pt")
    with pytest.raises(ObjectDamaged, match=r"model\.pt is missing"):
        copy_checkpoint(source, store, "exp", "ckpt")
    with pytest.raises(ObjectMissing):
        read_manifest(store, "exp", "ckpt")


def test_many_files_come_and_go(store: ObjectStore, tmp_path: Path) -> None:
    """However many travel at once, each arrives as itself."""
    names = {f"part-{number}": os.urandom(1000 + number) for number in range(40)}
    (tmp_path / "folder").mkdir()
    for name, data in names.items():
        (tmp_path / "folder" / name).write_bytes(data)
    stored(store, tmp_path / "folder")
    load_checkpoint(store, "exp", "ckpt", tmp_path / "back")
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == names


def test_ids_cannot_climb_out(store: ObjectStore) -> None:
    """Ids that name another place are refused before anything is touched."""
    for experiment, checkpoint in (("..", "x"), ("a/b", "x"), ("a", "../x"), ("a", "")):
        with pytest.raises(ObjectError):
            read_manifest(store, experiment, checkpoint)


HEX = "ab" * 32
FILE = {"size_bytes": 1, "blake3": HEX}
WHOLE: dict[str, Any] = {
    "checkpoint_id": "ckpt",
    "steps_completed": 7,
    "metadata": {},
    "files": {"model.pt": FILE},
    "provenance": {"experiment_id": "exp", "trial_id": "exp.0", "run": 1},
    "environment": HEX,
    "format": 2,
}
HOSTILE: dict[str, bytes | dict[str, Any]] = {
    "nothing": b"",
    "NUL": b"\0" * 100,
    "not UTF-8": b'{"checkpoint_id":"\xff"}',
    "not UTF-8 in metadata": json.dumps(WHOLE).encode().replace(b"{}", b'{"a":"\xff"}', 1),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(WHOLE).encode(),
    "deep": json.dumps(WHOLE)
    .replace('"metadata": {}', '"metadata": {"a": ' + "[" * 90_000 + "]" * 90_000 + "}")
    .encode(),
    "endless": b"[" * 90_000,
    "a number without end": json.dumps(WHOLE).replace("7", "9" * 90_000).encode(),
    "infinity": json.dumps(WHOLE).replace("7", "1e999").encode(),
    "a list": b"[]",
    "null": b"null",
    "of another checkpoint": WHOLE | {"checkpoint_id": "other"},
    "of another experiment": WHOLE | {"provenance": WHOLE["provenance"] | {"experiment_id": "x"}},
    "a path as its id": WHOLE | {"checkpoint_id": "../../../x"},
    "a path as the one before": WHOLE | {"previous": "../../other/c1"},
    "text for a number": WHOLE | {"steps_completed": "7"},
    "text for files": WHOLE | {"files": "model.pt"},
    "files without sizes": WHOLE | {"files": {"a": {}}},
    "files without digests": WHOLE | {"files": {"a": {"size_bytes": 1}}},
    "a format of text": WHOLE | {"format": "2"},
    **{
        f"a file {name!r:.20}": WHOLE | {"files": {name: FILE}}
        for name in (
            "../x",
            "/etc/passwd",
            "a//b",
            ".",
            "",
            "a\0b",
            "a\x1b[2Jb",
            "a\nb",
            "a\\b",
            "x" * 2000,
            "manifest.json",
            ".held/x",
            ".uses/x/y",
            "\ud800",
        )
    },
    "a file in a file": WHOLE | {"files": {"a": FILE, "a/b": FILE}},
    "a file with a negative size": WHOLE | {"files": {"a": FILE | {"size_bytes": -1}}},
    "a file without end": WHOLE | {"files": {"a": FILE | {"size_bytes": 10**15}}},
    "another digest": WHOLE | {"files": {"a": {"size_bytes": 1, "sha256": HEX}}},
    "a header as a digest": WHOLE | {"files": {"a": FILE | {"blake3": 'x"\r\nSet-Cookie: y'}}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_that_says_what_none_can(store: ObjectStore, tmp_path: Path, name: str) -> None:
    """However whole its digest is: all who read it are told that it is damaged."""
    body = HOSTILE[name]
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    store.put_bytes(f"{PREFIX}manifest.json", b'{"sha256":"%s","manifest":%s}' % (digest, body))
    with pytest.raises(ObjectDamaged, match=r"manifest\.json: (is no manifest|its bytes)"):
        read_manifest(store, "exp", "ckpt")
    with pytest.raises(ObjectDamaged):
        load_checkpoint(store, "exp", "ckpt", tmp_path / "back")
    store.put_bytes(f"{PREFIX}manifest.json", body)
    with pytest.raises(ObjectDamaged):
        read_manifest(store, "exp", "ckpt")


def test_what_the_hostile_manifests_are_made_of_is_whole(store: ObjectStore) -> None:
    """So that each of them is refused for what is said of it."""
    body = json.dumps(WHOLE).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    store.put_bytes(f"{PREFIX}manifest.json", b'{"sha256":"%s","manifest":%s}' % (digest, body))
    assert read_manifest(store, "exp", "ckpt").manifest.steps_completed == 7


def test_a_manifest_without_end_is_not_read_whole(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no more memory than the largest honest one."""
    monkeypatch.setattr(manifest, "MANIFEST_BYTES_MAX", 1000)
    store.put_bytes(f"{PREFIX}manifest.json", b" " * 1001)
    with pytest.raises(ObjectDamaged, match="more than 1,000 bytes"):
        read_manifest(store, "exp", "ckpt")
