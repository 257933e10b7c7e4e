"""Checkpoints and code go from a folder to another store, whole, once, and again after a cut."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Rung
from rung.storage import (
    FolderStore,
    ObjectStore,
    Provenance,
    load_checkpoint,
    open_store,
    store_checkpoint,
)
from servers.seaweed import Seaweed

CHECKPOINTS = ("c0", "c1", "c2")
CODE = b"a code archive"
CONFIG = b"{}"
CONFIG_NAME = f"configs/{hashlib.sha256(CONFIG).hexdigest()}.json"
CODE_NAME = f"code/{hashlib.sha256(CODE).hexdigest()}.tar.gz"


@pytest.fixture
def source(tmp_path: Path) -> FolderStore:
    """Give a folder with three checkpoints, half of a fourth, and a code archive."""
    store = FolderStore(tmp_path / "objects")
    files = tmp_path / "files"
    files.mkdir()
    for number, name in enumerate(CHECKPOINTS):
        (files / "model.bin").write_bytes(bytes([number]) * 100_000)
        store_checkpoint(
            store,
            files,
            checkpoint_id=name,
            steps_completed=number,
            metadata={},
            provenance=Provenance(experiment_id="x", trial_id="x.0", run=1),
        )
    store.put_bytes("checkpoints/x/half/model.bin", b"")
    store.put_bytes(CODE_NAME, CODE)
    store.put_bytes(CONFIG_NAME, CONFIG)
    store.put_bytes("archive/elsewhere", b"")
    return store


def whole(store: ObjectStore, folder: Path) -> None:
    """Check that all came over, digest by digest."""
    for name in CHECKPOINTS:
        load_checkpoint(store, "x", name, folder / name)
    assert store.read(CODE_NAME) == CODE
    assert store.read(CONFIG_NAME) == CONFIG
    assert len(store.list("")) == 2 * len(CHECKPOINTS) + 2


def test_copy_to_a_folder(source: FolderStore, tmp_path: Path, rung: Rung) -> None:
    """All of it once; the second time it is there already."""
    target = FolderStore(tmp_path / "target")
    result = rung("objects", "copy", str(source.root), target.url)
    assert (result.code, result.err) == (0, "")
    assert (
        "3 checkpoints, 1 code archive, 1 configuration and 0 encrypted secrets copied"
        " (293.0 KiB), 0 were" in result.out
    )
    whole(target, tmp_path / "loaded")
    again = rung("objects", "copy", source.url, target.url, "--json").json
    assert again == {
        "checkpoints": 0,
        "code": 0,
        "configs": 0,
        "secrets": 0,
        "size_bytes": 0,
        "already": 5,
        "damaged": [],
    }


def test_copy_to_s3(
    source: FolderStore,
    tmp_path: Path,
    rung: Rung,
    seaweed: Seaweed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real S3 server takes them as well."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{seaweed.url}/copied"
    assert rung("objects", "copy", str(source.root), url).code == 0
    target = open_store(url)
    whole(target, tmp_path / "loaded")
    target.close()


@pytest.mark.parametrize("lost", ["checkpoints/x/c1/manifest.json", "checkpoints/x/c1/model.bin"])
def test_it_goes_on_after_a_cut(
    source: FolderStore, tmp_path: Path, rung: Rung, lost: str
) -> None:
    """A checkpoint of which the manifest did not arrive, is copied again."""
    target = FolderStore(tmp_path / "target")
    rung("objects", "copy", str(source.root), target.url)
    target.delete("checkpoints/x/c1/manifest.json")
    target.delete(lost)
    assert rung("objects", "copy", source.url, target.url, "--json").json["checkpoints"] == 1
    whole(target, tmp_path / "loaded")


def _flip(store: FolderStore) -> None:
    path = store.root / "checkpoints/x/c1/model.bin"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_flip, "checkpoint c1: model.bin has the digest"),
        (
            lambda store: store.put_bytes("checkpoints/x/c1/manifest.json", b"{}"),
            "manifest.json: is no manifest",
        ),
        (lambda store: store.delete("checkpoints/x/c1/model.bin"), "model.bin is missing"),
        (
            lambda store: store.put_bytes("code/0123.tar.gz", b"x"),
            "code/0123.tar.gz holds other bytes than its name says",
        ),
    ],
)
def test_what_is_damaged_is_left_out(
    source: FolderStore,
    tmp_path: Path,
    rung: Rung,
    damage: Callable[[FolderStore], object],
    message: str,
) -> None:
    """It is named, the others are copied, and the exit code is 1."""
    damage(source)
    target = FolderStore(tmp_path / "target")
    result = rung("objects", "copy", str(source.root), target.url)
    assert result.code == 1
    assert message in result.err
    load_checkpoint(target, "x", "c2", tmp_path / "loaded")
    there = {info.name for info in target.list("")}
    assert ("checkpoints/x/c1/manifest.json" in there) == message.startswith("code/")
    assert "code/0123.tar.gz" not in there
    (line,) = rung("objects", "copy", source.url, target.url, "--json").json["damaged"]
    assert message in line


def test_what_it_cannot_copy_from(tmp_path: Path, rung: Rung) -> None:
    """It says what it can."""
    target = (tmp_path / "target").as_uri()
    missing = rung("objects", "copy", str(tmp_path / "nothing"), target)
    assert (missing.code, "is no folder" in missing.err) == (6, True)
    assert not (tmp_path / "target").exists()


def test_areas_are_copied_as_they_are(source: FolderStore, tmp_path: Path, rung: Rung) -> None:
    """Checkpoints of an area go to that of the same name; none comes from another one."""
    files = tmp_path / "files"
    for name in ("vision", "teams/vision"):
        store_checkpoint(
            source.area(name),
            files,
            checkpoint_id=CHECKPOINTS[0],
            steps_completed=1,
            metadata={"area": name},
            provenance=Provenance(experiment_id="x", trial_id="x.0", run=1),
        )
    target = FolderStore(tmp_path / "target")
    assert rung("objects", "copy", str(source.root), target.url, "--json").json["checkpoints"] == 5
    for name in ("vision", "teams/vision"):
        folder = tmp_path / "loaded" / name
        loaded = load_checkpoint(target.area(name), "x", CHECKPOINTS[0], folder)
        assert loaded.manifest.metadata == {"area": name}
    target.delete("areas/")
    whole(target, tmp_path / "loaded")
    again = rung("objects", "copy", str(source.root), target.url, "--json").json
    assert (again["checkpoints"], again["already"]) == (2, 5)
