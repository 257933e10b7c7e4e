"""Files shared between checkpoints where there are no links: whatever is cut or comes between.

The store of these tests has only what every store has. Its operations are cut one after the other,
or others' work is put between them, and afterwards every complete checkpoint must be whole, and
nothing may be left when all are deleted.
"""

import contextlib
import itertools
from functools import partial
from pathlib import Path

import pytest

from rung.storage import (
    CheckpointWriter,
    FolderStore,
    ObjectError,
    ObjectMissing,
    ObjectStore,
    Provenance,
    copy_checkpoint,
    delete_checkpoint,
    load_checkpoint,
    locate,
    read_manifest,
    sweep_unfinished,
)
from rung.storage.checkpoint.transfer import SHARED_BYTES_MIN
from servers.seaweed import Seaweed
from storage.remote import Cut, RemoteStore
from storage.s3.bucket import open_at

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("no_power_cuts")]

ABOUT = Provenance(experiment_id="exp", trial_id="exp.0", run=1)
TABLE = b"t" * SHARED_BYTES_MIN
NAMES = ("exp.0.1.1", "exp.0.1.2", "exp.0.1.3")
A, B, C = NAMES
OPERATIONS_MAX = 60


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    """Three checkpoints in a row with two unchanged tables and a file of each one's own."""
    store = FolderStore(tmp_path_factory.mktemp("source"))
    previous = None
    for name in NAMES:
        writer = CheckpointWriter(store, "exp", name, previous)
        writer.write("table", lambda file: file.write(TABLE), may_be_unchanged=True)
        writer.write("table.more", lambda file: file.write(TABLE[::-1]), may_be_unchanged=True)
        writer.write("tab", lambda file, name=name: file.write(name.encode()))  # type: ignore[misc]
        previous = writer.finish(steps_completed=1, metadata={}, provenance=ABOUT)
    return store


class Scene:
    """Fresh stores with the first checkpoints in them."""

    def __init__(self, source: FolderStore, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._numbers = itertools.count()

    def store(self, *names: str) -> RemoteStore:
        """Return a new store with some checkpoints."""
        store = RemoteStore(self._folder / f"store{next(self._numbers)}")
        for name in names:
            copy_checkpoint(self._source, store, "exp", name)
        return store

    def copy(self, store: ObjectStore, name: str) -> None:
        """Store a checkpoint, and again after what may pass."""
        for attempt in range(3):
            try:
                copy_checkpoint(self._source, store, "exp", name)
            except ObjectError as error:
                if attempt == 2 or not error.retriable:
                    raise
            else:
                return

    def check(self, store: ObjectStore, *names: str) -> None:
        """Every one of these is whole; when they are deleted nothing is left, and no other is."""
        for name in names:
            load_checkpoint(store, "exp", name, self._folder / f"back{next(self._numbers)}")
        for name in names:
            delete_checkpoint(store, "exp", name)
        assert store.list("") == []


@pytest.fixture
def scene(source: FolderStore, tmp_path: Path) -> Scene:
    """Give the scene of a test."""
    return Scene(source, tmp_path)


def bytes_of(store: ObjectStore) -> int:
    """Return how much a store holds, manifests and what is small left out."""
    return sum(info.size_bytes // SHARED_BYTES_MIN for info in store.list("")) * SHARED_BYTES_MIN


@pytest.mark.parametrize("kind", ["remote", "s3"])
def test_what_is_unchanged_is_stored_once(
    scene: Scene, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Three checkpoints hold the tables of one; deleted in any order, the others stay whole."""
    for turn, order in enumerate(itertools.permutations(NAMES)):
        if kind == "remote":
            store: ObjectStore = scene.store()
        else:
            server: Seaweed = request.getfixturevalue("seaweed")
            store = open_at(server, f"sharing-{turn}")
        for name in NAMES:
            scene.copy(store, name)
        assert bytes_of(store) == 2 * len(TABLE)
        for gone, *left in (order, order[1:], order[2:]):
            delete_checkpoint(store, "exp", gone)
            for name in left:
                load_checkpoint(store, "exp", name, tmp_path / f"{turn}{gone}{name}")
        assert store.list("") == []
        store.close()


def test_what_the_target_has_is_not_looked_at_again(source: FolderStore, tmp_path: Path) -> None:
    """What is shared with the previous checkpoint is neither read nor sent; the rest is whole."""
    target = RemoteStore(tmp_path / "target")
    copy_checkpoint(source, target, "exp", A)
    staged = FolderStore(tmp_path / "staged")
    copy_checkpoint(source, staged, "exp", B)
    table = staged.root / "checkpoints" / "exp" / B / "table"
    table.write_bytes(b"not the table")
    copy_checkpoint(staged, target, "exp", B)
    load_checkpoint(target, "exp", B, tmp_path / "back")
    assert (tmp_path / "back" / "table").read_bytes() == TABLE


def test_where_shared_files_lie_is_found(scene: Scene) -> None:
    """Each file of a checkpoint is located, be it its own or another's."""
    store = scene.store(*NAMES)
    places = locate(store, read_manifest(store, "exp", C))
    assert {name: info.name for name, info in places.items()} == {
        "manifest.json": f"checkpoints/exp/{C}/manifest.json",
        "tab": f"checkpoints/exp/{C}/tab",
        "table": f"checkpoints/exp/{A}/table",
        "table.more": f"checkpoints/exp/{A}/table.more",
    }


def test_the_manifest_is_the_same_in_every_store(scene: Scene, source: FolderStore) -> None:
    """Where files lie is the store's business, so digests of manifests stay what they were."""
    store = scene.store(*NAMES)
    for name in NAMES:
        assert read_manifest(store, "exp", name) == read_manifest(source, "exp", name)


@pytest.mark.parametrize("gone", [A, B])
def test_another_deletes_while_one_joins(scene: Scene, gone: str) -> None:
    """A deletion between any two operations of a join harms neither side."""
    for number in range(1, OPERATIONS_MAX):
        store = scene.store(A, B)
        if gone == B:
            delete_checkpoint(store, "exp", A)
        store.when(number, partial(delete_checkpoint, store, "exp", gone))
        scene.copy(store, C)
        if store.calm() < number:
            break
        scene.check(store, C, *([B] if gone == A else []))
    assert 6 < number < OPERATIONS_MAX - 1


@pytest.mark.parametrize("gone", [A, B])
def test_another_joins_while_one_deletes(scene: Scene, gone: str) -> None:
    """A join between any two operations of a deletion harms neither side."""
    for number in range(1, OPERATIONS_MAX):
        store = scene.store(A, B)
        if gone == B:
            delete_checkpoint(store, "exp", A)
        store.when(number, partial(scene.copy, store, C))
        delete_checkpoint(store, "exp", gone)
        if store.calm() < number:
            break
        scene.check(store, C, *([B] if gone == A else []))
    assert 3 < number < OPERATIONS_MAX - 1


def test_two_delete_at_once(scene: Scene) -> None:
    """The owner and the holder, deleted in each other's middle, leave nothing behind."""
    for number in range(1, OPERATIONS_MAX):
        store = scene.store(A, B)
        store.when(number, partial(delete_checkpoint, store, "exp", A))
        delete_checkpoint(store, "exp", B)
        if store.calm() < number:
            break
        assert store.list("") == []
    assert 3 < number < OPERATIONS_MAX - 1


def test_a_deletion_that_is_cut_is_repeated(scene: Scene) -> None:
    """Cut before any operation and repeated, a deletion leaves the others whole."""
    for gone, left in ((A, (B, C)), (B, (A, C)), (C, (A, B))):
        for number in range(1, OPERATIONS_MAX):
            store = scene.store(*NAMES)
            store.when(number, _cut)
            with contextlib.suppress(Cut):
                delete_checkpoint(store, "exp", gone)
            done = store.calm() < number
            delete_checkpoint(store, "exp", gone)
            with pytest.raises(ObjectMissing):
                read_manifest(store, "exp", gone)
            scene.check(store, *left)
            if done:
                break
        assert 3 < number < OPERATIONS_MAX - 1


def test_a_join_that_is_cut_is_repeated_or_swept(scene: Scene) -> None:
    """Cut before any operation, it is completed by the next attempt, or swept by the next run.

    Meanwhile the one that it shared with may have been deleted.
    """
    for repeated, gone in itertools.product((True, False), (True, False)):
        for number in range(1, OPERATIONS_MAX):
            store = scene.store(A)
            store.when(number, _cut)
            with contextlib.suppress(Cut):
                copy_checkpoint(scene._source, store, "exp", B)
            done = store.calm() < number
            if gone:
                delete_checkpoint(store, "exp", A)
            if repeated:
                scene.copy(store, B)
            elif not done:
                sweep_unfinished(store, "exp", "exp.0", "exp.0.2")
            scene.check(store, *([] if gone else [A]), *([B] if repeated or done else []))
            if done:
                break
        assert 6 < number < OPERATIONS_MAX - 1


def test_sweeping_leaves_alone_what_others_hold(scene: Scene, tmp_path: Path) -> None:
    """A deleted owner looks unfinished to the next run's sweep, and its shared files stay."""
    store = scene.store(*NAMES)
    delete_checkpoint(store, "exp", A)
    sweep_unfinished(store, "exp", "exp.0", "exp.0.2")
    load_checkpoint(store, "exp", B, tmp_path / "back")
    scene.check(store, B, C)


def test_small_files_are_not_worth_it(source: FolderStore, tmp_path: Path) -> None:
    """What costs less to store than to share is stored."""
    small = FolderStore(tmp_path / "small")
    previous = None
    for name in (A, B):
        writer = CheckpointWriter(small, "exp", name, previous)
        writer.write("x", lambda file: file.write(b"same"), may_be_unchanged=True)
        previous = writer.finish(steps_completed=1, metadata={}, provenance=ABOUT)
    store = RemoteStore(tmp_path / "remote")
    for name in (A, B):
        copy_checkpoint(small, store, "exp", name)
    assert not [info for info in store.list("") if "/.held/" in info.name]


def _cut() -> None:
    raise Cut("killed")
