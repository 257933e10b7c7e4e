"""What a run puts into its staging folder leads the agent nowhere, and does not hold it up.

The agent acts with its own rights here, as where it cannot change users.
"""

import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rung.agent.isolation.isolation import hold_folder, release_folder
from rung.agent.objects.checkpoint_upload import CheckpointUpload, Owner, remove_if_empty
from rung.agent.objects.removal import remove_tree
from rung.agent.objects.run_objects import RunObjects
from rung.agent.outbox.outbox import Outbox
from rung.agent.run.ipc_server import Connection
from rung.core.ipc.protocol import Fetch, Fetched, StagedPart
from rung.core.ipc.staged_folder import ANNOUNCED
from rung.events.trial import RunSpec
from rung.storage import (
    FileEntry,
    FolderStore,
    ObjectError,
    Provenance,
    read_manifest,
    store_checkpoint,
)

pytestmark = pytest.mark.timeout(60)

OWNER = Owner("exp00001", "exp00001.0", 1)
ALLOCATION = OWNER.allocation_id
CHECKPOINT = f"{ALLOCATION}.5"
PREFIX = f"checkpoints/exp00001/{CHECKPOINT}/"
TOKEN = b"the agent's token"


class Swapping(FolderStore):
    """An object store during whose writes a run changes what it has staged."""

    swap: Callable[[], None] | None = None

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes, and let the run act."""
        super().put_bytes(name, data)
        if self.swap is not None:
            self.swap()


class Heard:
    """A run's connection, of which the answers are kept."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def send(self, message: object) -> None:
        """Take an answer."""
        self.answers.append(message)


class Place:
    """Transfers of runs that stage, one run's folder, and a folder that is the agent's alone."""

    def __init__(self, folder: Path) -> None:
        self.store = Swapping(folder / "objects")
        self.outbox = Outbox(folder / "spool.db")
        self.outbox.open("a1", "host")
        self.checkpoint_upload = CheckpointUpload(folder, self.store, self.outbox)
        self.checkpoint_upload.staged = True  # as where objects lie in S3
        self.own = self.checkpoint_upload.folder_of(ALLOCATION)
        self.own.mkdir(parents=True)
        self.foreign = folder / "foreign"
        self.foreign.mkdir()
        self.secret = self.foreign / "token"
        self.secret.write_bytes(TOKEN)

    def stage(self, data: bytes = b"state") -> Path:
        """Stage a checkpoint as a run does; return the folder of its files."""
        source = self.own.parent / "source"
        source.mkdir()
        (source / "state").write_bytes(data)
        store_checkpoint(
            FolderStore(self.own),
            source,
            checkpoint_id=CHECKPOINT,
            steps_completed=5,
            metadata={},
            provenance=Provenance(
                experiment_id="exp00001", trial_id=OWNER.trial_id, run=OWNER.run
            ),
        )
        remove_tree(source)
        return self.own / PREFIX

    async def announce(self) -> None:
        """Announce the staged checkpoint."""
        upload = self.checkpoint_upload
        await upload.announce(OWNER, CHECKPOINT, upload.last_reported)

    async def upload(self) -> str:
        """Upload the staged checkpoint."""
        return await self.checkpoint_upload.upload(OWNER, CHECKPOINT, lambda _: None)

    async def fetch(self, name: str) -> Fetched:
        """Return the answer to a run that asks for an object."""
        spec = RunSpec(
            experiment_id=OWNER.experiment_id,
            trial_id=OWNER.trial_id,
            trial_index=0,
            run=OWNER.run,
            hparams={},
            seed=1,
            length=1,
            time_metric="batches",
            restore=[],
            code_digest=None,
            config={},
        )
        run_objects = RunObjects(self.checkpoint_upload, spec, _no_note, _no_note, list)
        heard = Heard()
        await run_objects._fetch(cast(Connection, heard), Fetch(1, name))
        (answer,) = heard.answers
        assert isinstance(answer, Fetched)
        return answer

    def untouched(self) -> bool:
        """Whether the agent's own folder is as it was."""
        return list(self.foreign.iterdir()) == [self.secret] and self.secret.read_bytes() == TOKEN


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    """Give a place, and close it."""
    made = Place(tmp_path)
    yield made
    await made.checkpoint_upload.close()
    await made.outbox.close()


async def test_an_announcement_is_not_written_through_a_link(place: Place) -> None:
    """It takes the link's place; through a link in the place of its folder nothing is written."""
    (place.own / ANNOUNCED).mkdir()
    (place.own / ANNOUNCED / CHECKPOINT).symlink_to(place.secret)
    await place.announce()
    assert place.untouched()
    assert not (place.own / ANNOUNCED / CHECKPOINT).is_symlink()
    remove_tree(place.own / ANNOUNCED)
    (place.own / ANNOUNCED).symlink_to(place.foreign)
    with pytest.raises(OSError, match="Not a directory"):
        await place.announce()
    assert "no object" in await place.upload()
    assert place.untouched()


async def test_a_staged_link_is_not_read(place: Place) -> None:
    """Where a file, or the folder with a checkpoint, is a link nothing goes to the store."""
    staged = place.stage(TOKEN)
    (staged / "state").unlink()
    (staged / "state").symlink_to(place.secret)
    assert "state: is no file of its own" in await place.upload()
    place.stage(TOKEN)
    moved = staged.rename(place.foreign / CHECKPOINT)
    staged.symlink_to(moved)
    assert "manifest.json: is no file of its own" in await place.upload()
    assert place.store.list("") == []
    assert (moved / "state").read_bytes() == TOKEN


async def test_a_file_is_read_from_where_it_was_checked(place: Place) -> None:
    """What the run puts into the place of a file that was compared is not what is stored."""
    staged = place.stage()
    read = place.store.put

    def put(name: str, source: Path) -> None:
        (staged / "state").unlink()
        (staged / "state").symlink_to(place.secret)
        read(name, source)

    place.store.put = put  # type: ignore[method-assign]
    assert await place.upload() == ""
    assert place.store.read(f"{PREFIX}state") == b"state"
    assert place.untouched()


async def test_a_manifest_that_changes_meanwhile_is_not_stored(place: Place) -> None:
    """What the store gets is what was checked."""
    staged = place.stage()
    read = place.store.put

    def put(name: str, source: Path) -> None:
        (staged / "manifest.json").write_text("{}")
        read(name, source)

    place.store.put = put  # type: ignore[method-assign]
    assert "its manifest changed meanwhile" in await place.upload()
    with pytest.raises(ObjectError):
        read_manifest(place.store, "exp00001", CHECKPOINT)


async def test_discarding_deletes_nothing_through_a_link(place: Place) -> None:
    """Once a checkpoint has arrived its folder is deleted, and not where a link leads by then."""
    staged = place.stage()
    precious = place.foreign / CHECKPOINT
    precious.mkdir()
    (precious / "state").write_text("precious")

    def swap() -> None:
        staged.parent.rename(place.own / "moved")
        staged.parent.symlink_to(place.foreign)

    place.store.swap = swap
    assert await place.upload() == ""
    assert (precious / "state").read_text() == "precious"


async def test_what_an_earlier_life_left_is_deleted_through_no_link(place: Place) -> None:
    """When the agent starts, and when a run is over, links go themselves."""
    precious = place.foreign / CHECKPOINT
    precious.mkdir()
    (precious / "state").write_text("precious")
    old = place.foreign / "old"
    old.write_text("of last week")
    os.utime(old, (time.time() - 7 * 86400,) * 2)
    place.stage()
    await place.announce()
    remove_tree(place.own / ".incoming")
    (place.own / ".incoming").symlink_to(place.foreign)
    (place.own / "checkpoints" / "linked").symlink_to(place.foreign)
    (place.own / "fetched").symlink_to(place.foreign)
    await place.checkpoint_upload.upload_backlog(60)
    assert read_manifest(place.store, "exp00001", CHECKPOINT)
    (place.own / "kept").symlink_to(place.foreign)
    remove_if_empty(place.own)
    assert not place.own.exists()
    assert sorted(place.foreign.iterdir()) == sorted([precious, old, place.secret])
    assert (precious / "state").read_text() == "precious"


async def test_pipes_that_an_earlier_life_left_are_not_waited_for(place: Place) -> None:
    """They are deleted, in the place of folders, too."""
    place.stage()
    await place.announce()
    os.mkfifo(place.own / "kept")
    os.mkfifo(place.own / "checkpoints" / "exp00001" / "pipe")
    await place.checkpoint_upload.upload_backlog(60)
    assert read_manifest(place.store, "exp00001", CHECKPOINT)
    assert not (place.own / "kept").exists()
    os.mkfifo(place.own / "kept")
    remove_if_empty(place.own)
    assert not place.own.exists()


async def test_a_part_is_neither_read_nor_deleted_through_a_link(place: Place) -> None:
    """As a whole checkpoint; its files are deleted one by one."""
    secret = place.foreign / CHECKPOINT
    secret.mkdir()
    (secret / "state").write_bytes(TOKEN)
    staged = FolderStore(place.own)
    staged.put_bytes(f"{PREFIX}state", TOKEN)
    entry = FileEntry(size_bytes=len(TOKEN), blake3="0" * 64)
    part = StagedPart(CHECKPOINT, {"state": entry})
    folder = place.own / "checkpoints" / "exp00001"
    remove_tree(folder)
    folder.symlink_to(place.foreign)
    with pytest.raises(ObjectError, match="is no file of its own"):
        await place.checkpoint_upload.upload_part(OWNER, part, lambda _: None)
    assert (secret / "state").read_bytes() == TOKEN
    assert place.store.list("") == []


async def test_a_part_that_arrived_is_not_deleted_through_a_link(place: Place) -> None:
    """The folder of a part may become a link while the part is uploaded."""
    staged = place.stage()
    files = read_manifest(FolderStore(place.own), "exp00001", CHECKPOINT).manifest.files
    secret = place.foreign / CHECKPOINT
    secret.mkdir()
    (secret / "state").write_bytes(TOKEN)
    write = place.store.put

    def put(name: str, source: Path) -> None:
        write(name, source)
        staged.parent.rename(place.own / "moved")
        staged.parent.symlink_to(place.foreign)

    place.store.put = put  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Not a directory"):
        await place.checkpoint_upload.upload_part(
            OWNER, StagedPart(CHECKPOINT, files), lambda _: None
        )
    assert (secret / "state").read_bytes() == TOKEN


async def test_what_is_fetched_is_not_written_through_a_link(place: Place) -> None:
    """A file takes the place of a link or of a pipe; a folder that is a link gets nothing."""
    place.store.put_bytes(f"{PREFIX}state", b"weights")
    fetched = place.own / "fetched"
    fetched.mkdir()
    (fetched / "1").symlink_to(place.secret)
    answer = await place.fetch(f"{PREFIX}state")
    assert answer.path == str(fetched / "1")
    assert (fetched / "1").read_bytes() == b"weights"
    assert place.untouched()
    (fetched / "1").unlink()
    os.mkfifo(fetched / "1")
    assert not (await place.fetch(f"{PREFIX}state")).problem
    assert (fetched / "1").read_bytes() == b"weights"
    remove_tree(fetched)
    fetched.symlink_to(place.foreign)
    assert "Not a directory" in (await place.fetch(f"{PREFIX}state")).problem
    assert place.untouched()


@pytest.mark.parametrize("name", ["state", "manifest.json"])
async def test_a_staged_pipe_is_not_waited_for(place: Place, name: str) -> None:
    """It is damage, and is deleted with the rest."""
    staged = place.stage()
    (staged / name).unlink()
    os.mkfifo(staged / name)
    assert f"{name}: is no file of its own" in await place.upload()
    assert not staged.exists()


async def test_a_pipe_in_the_place_of_an_announcement_is_not_waited_for(place: Place) -> None:
    """The announcement takes its place."""
    (place.own / ANNOUNCED).mkdir()
    os.mkfifo(place.own / ANNOUNCED / CHECKPOINT)
    await place.announce()
    assert (place.own / ANNOUNCED / CHECKPOINT).is_file()


def test_holding_a_folder_makes_and_deletes_nothing_through_a_link(tmp_path: Path) -> None:
    """On one machine a run can write where the agent notes which runs have its checkpoints."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    own = tmp_path / "checkpoints" / "exp00001"
    held = hold_folder(tmp_path, ALLOCATION)
    assert held.is_file()
    held.unlink()
    held.symlink_to(foreign / "made")
    assert hold_folder(tmp_path, ALLOCATION) == held
    assert list(foreign.iterdir()) == []
    release_folder(held)
    assert not own.exists()
    own.mkdir()
    (own / ".incoming").symlink_to(foreign)
    (foreign / ALLOCATION).write_text("precious")
    with pytest.raises(OSError, match="Not a directory"):
        hold_folder(tmp_path, ALLOCATION)
    release_folder(held)
    assert (foreign / ALLOCATION).read_text() == "precious"


def _no_note(_: object) -> None:
    """Take no note."""
