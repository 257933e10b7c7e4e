"""Checkpoints to which every rank gives its files: one manifest over all of them, or none."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rung.core import _rank_connections
from rung.core._checkpoint import writer
from rung.core._checkpoint.context import CheckpointContext
from rung.core._checkpoint.staged_store import StagedStore
from rung.core._distributed import DistributedContext
from rung.core.ipc.protocol import FromTrial, Heartbeat, StagedPart, Stored, Uploaded
from rung.storage import (
    CheckpointWriter,
    FolderStore,
    ObjectError,
    ObjectMissing,
    copy_checkpoint,
    load_checkpoint,
    open_checkpoint,
    read_manifest,
)
from support.agent_end import run_spec
from support.ranked import on_agents, ranked

EXPERIMENT = "exp00000"
TABLE = b"table" * 100_000
Work = Callable[[DistributedContext, CheckpointContext], Any]


class Connection:
    """A link that remembers."""

    def __init__(self) -> None:
        self.preempted = False
        self.final = False
        self.said: list[FromTrial] = []

    def send(self, message: FromTrial) -> None:
        """Remember."""
        self.said.append(message)

    def best_validation(self, within_s: float) -> None:
        """There is none."""

    def close(self) -> None:
        """Nothing is open."""


class Scene:
    """The ranks of a run, in threads of this process, and their store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FolderStore(folder / "objects")
        self.links: dict[int, Connection] = {}

    def run(self, work: Work, *agents: int, **changes: Any) -> list[Any]:
        """Do some work on each rank; return what came of it."""
        spec = run_spec(**changes)

        def one(ranks: DistributedContext) -> Any:
            link = self.links[ranks.rank] = Connection()
            scratch = self.folder / f"scratch-{ranks.rank}"
            scratch.mkdir(exist_ok=True)
            context = CheckpointContext(link, self.store, spec, scratch, ranks)
            return work(ranks, context)

        return ranked(on_agents(*agents), one)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A store that is empty, and ranks that nobody stops."""
    monkeypatch.setattr(_rank_connections, "QUIET_S", 0.0)
    return Scene(tmp_path)


def saver(rank: int, table: bytes = TABLE) -> Callable[[CheckpointWriter], int]:
    """Return what writes a rank's files: a table that may be unchanged, and its number."""

    def save(writer: CheckpointWriter) -> int:
        writer.write(f"table-{rank}", lambda file: file.write(table), may_be_unchanged=True)
        writer.write(f"rank-{rank}", lambda file: file.write(b"%d" % rank))
        return rank

    return save


def test_the_files_of_all_ranks_are_one_checkpoint(scene: Scene, tmp_path: Path) -> None:
    """The chief seals them and makes it known, with a file about what the ranks returned."""

    def complete(writer: CheckpointWriter, returned: list[Any]) -> None:
        writer.write("index", lambda file: file.write(repr(returned).encode()))

    def work(ranks: DistributedContext, context: CheckpointContext) -> str:
        name = context.save_async(
            saver(ranks.rank), {"note": 1}, steps_completed=4, shard=True, complete=complete
        )
        context.wait()
        return name

    [name] = set(scene.run(work, 3))
    stored = load_checkpoint(scene.store, EXPERIMENT, name, tmp_path / "back")
    names = [*(f"rank-{n}" for n in range(3)), *(f"table-{n}" for n in range(3))]
    assert list(stored.manifest.files) == ["index", *names]
    assert (tmp_path / "back" / "index").read_text() == "[0, 1, 2]"
    assert stored.manifest.metadata == {"note": 1, "steps_completed": 4}
    size = stored.manifest.size_bytes
    assert scene.links[0].said == [Stored(name, 4, size, 7, stored.digest)]
    assert scene.links[1].said == scene.links[2].said == []


@pytest.mark.parametrize("behind", [False, True])
def test_folders_of_all_ranks_are_one_checkpoint(scene: Scene, behind: bool) -> None:  # noqa: FBT001 - pytest's
    """As Determined has it: each rank fills a folder of its own."""

    def work(ranks: DistributedContext, context: CheckpointContext) -> str:
        opening = context.store_path_async if behind else context.store_path
        with opening(steps_completed=1, shard=True) as (folder, name):
            (folder / "sub").mkdir()
            (folder / "sub" / f"of-{ranks.rank}").write_text(str(ranks.rank))
        context.wait()
        return name

    [name] = set(scene.run(work, 2, 1))
    opened = open_checkpoint(scene.store, EXPERIMENT, name, scene.folder / "none")
    found = {file: path.read_text() for file, path in opened.paths.items()}
    assert found == {f"sub/of-{rank}": str(rank) for rank in range(3)}


@pytest.mark.parametrize("behind", [False, True])
def test_a_block_that_raises_on_one_rank_is_heard_of_on_all(scene: Scene, *, behind: bool) -> None:
    """Nobody waits for its files, and all go on to the next checkpoint together."""

    def work(ranks: DistributedContext, context: CheckpointContext) -> str:
        opening = context.store_path_async if behind else context.store_path
        said = ""
        try:
            with opening(steps_completed=1, shard=True) as (folder, _):
                if ranks.rank == 1:
                    (folder / "no such folder" / "of-1").write_text("first")
                (folder / f"of-{ranks.rank}").write_text("first")
            context.wait()
        except OSError as error:
            said = str(error)
        except ObjectError as error:
            said = f"told: {error}"
        with context.store_path(steps_completed=2, shard=True) as (folder, name):
            (folder / f"of-{ranks.rank}").write_text("second")
        assert len(read_manifest(scene.store, EXPERIMENT, name).manifest.files) == 3
        return said

    chief, raised, other = scene.run(work, 2, 1)
    assert "No such file" in raised
    assert chief == other
    assert chief.startswith("told: ")
    assert "rank 1: FileNotFoundError" in chief


def test_alone_a_rank_stores_all(scene: Scene) -> None:
    """A script for several slots works on one."""

    def work(ranks: DistributedContext, context: CheckpointContext) -> str:
        name = context.save_async(saver(ranks.rank), steps_completed=1, shard=True)
        context.wait()
        return name

    [name] = scene.run(work, 1)
    assert len(read_manifest(scene.store, EXPERIMENT, name).manifest.files) == 2


def test_it_does_not_exist_before_all_ranks_have_written(scene: Scene) -> None:
    """Meanwhile the script talks to its ranks as it likes, and waits for nothing."""
    may_write = threading.Event()

    def work(ranks: DistributedContext, context: CheckpointContext) -> bool:
        def save(writer: CheckpointWriter) -> None:
            if ranks.rank == 1:
                may_write.wait()
            saver(ranks.rank)(writer)

        name = context.save_async(save, steps_completed=1, shard=True)
        assert ranks.allgather(ranks.rank) == [0, 1, 2]
        assert not any(ranks.allgather(context.stored()))
        missing = False
        try:
            read_manifest(scene.store, EXPERIMENT, name)
        except ObjectMissing:
            missing = True
        ranks.barrier()
        may_write.set()
        context.wait()
        assert read_manifest(scene.store, EXPERIMENT, name)
        return missing

    assert scene.run(work, 3) == [True] * 3


def failures(scene: Scene, save: Callable[[int, CheckpointWriter], None]) -> list[str]:
    """Return with what a checkpoint fails on each of two ranks; nothing of it must be left."""

    def work(ranks: DistributedContext, context: CheckpointContext) -> str:
        context.save_async(lambda writer: save(ranks.rank, writer), steps_completed=1, shard=True)
        with pytest.raises((ObjectError, ZeroDivisionError)) as caught:
            context.wait()
        name = context.save_async(saver(ranks.rank), steps_completed=1, shard=True)
        context.wait()
        assert read_manifest(scene.store, EXPERIMENT, name)
        return str(caught.value)

    said = scene.run(work, 2)
    assert {info.name.split("/")[2] for info in scene.store.list("")} == {"exp00000.3.1.1-1"}
    return said


def test_files_of_one_name_are_refused(scene: Scene) -> None:
    """All ranks hear which name, and what to do."""
    message = (
        "checkpoint exp00000.3.1.1: rank 1 wrote state, which another rank wrote, too; give each "
        "rank's files names of their own"
    )

    def save(rank: int, writer: CheckpointWriter) -> None:
        writer.write("state", lambda file: file.write(b"%d" % rank))

    assert failures(scene, save) == [message] * 2


@pytest.mark.parametrize("chief_has_the_file", [True, False])
def test_a_file_of_one_rank_that_is_a_folder_of_another(
    scene: Scene,
    chief_has_the_file: bool,  # noqa: FBT001 - pytest's
) -> None:
    """It is refused in the same words on all ranks, whichever of them the store refused first."""
    file, folder = (0, 1) if chief_has_the_file else (1, 0)
    message = (
        f"checkpoint exp00000.3.1.1: state is a file of rank {file} and a folder of rank {folder},"
        " which wrote state/part; rename one"
    )

    def save(rank: int, writer: CheckpointWriter) -> None:
        name = "state" if rank == file else "state/part"
        writer.write(name, lambda sink: sink.write(b"%d" % rank))

    assert failures(scene, save) == [message] * 2


def test_two_machines_cannot_share_a_name_either(tmp_path: Path) -> None:
    """Where no store refuses, as each rank stages on its own machine, the manifest is refused."""
    scene = Staged(tmp_path)

    def work(ranks: DistributedContext, context: CheckpointContext) -> str:
        def save(writer: CheckpointWriter) -> None:
            name = "state/deep/part" if ranks.rank else "state"
            writer.write(name, lambda sink: sink.write(b"%d" % ranks.rank))

        context.save_async(save, steps_completed=1, shard=True)
        with pytest.raises(ObjectError) as caught:
            context.wait()
        return str(caught.value)

    [said] = set(scene.run(work, 1, 1))
    assert said == (
        "checkpoint exp00000.3.1.1: state is a file of rank 0 and a folder of rank 1, which wrote"
        " state/deep/part; rename one"
    )
    assert not list(tmp_path.rglob("manifest.json"))


METADATA: list[tuple[list[dict[str, Any]], dict[str, Any] | str]] = [
    ([{"a": 1}, {"b": 2}], {"a": 1, "b": 2}),
    ([{"a": 1}, {"a": 1}], {"a": 1}),
    ([{"a": {"c": 1}}, {"a": {"d": {"e": 2}}}, {"a": {"d": {"f": 3}}}],
     {"a": {"c": 1, "d": {"e": 2, "f": 3}}}),
    ([{"a": [1]}, {"a": [1]}], {"a": [1]}),
    ([{}, {"loss": None}], {"loss": None}),
    ([{"a": [1]}, {"a": [2]}], "a"),
    ([{"a": {"c": 1}}, {}, {"a": {"c": 2}}], "a.c"),
    ([{"a": {"c": 1}}, {"a": 1}], "a"),
    ([{"a": 1}, {"a": {"c": 1}}], "a"),
    ([{"steps_completed": 4}, {"steps_completed": 4}], {}),
]  # fmt: skip


@pytest.mark.parametrize(("metadata", "merged"), METADATA)
def test_metadata_of_all_ranks_are_merged(
    scene: Scene, metadata: list[dict[str, Any]], merged: dict[str, Any] | str
) -> None:
    """As in Determined: maps key by key, and what differs is refused on all ranks by its path."""

    def work(ranks: DistributedContext, context: CheckpointContext) -> str:
        name = context.save_async(
            saver(ranks.rank), metadata[ranks.rank], steps_completed=4, shard=True
        )
        try:
            context.wait()
        except ObjectError as error:
            return str(error)
        return name

    [said] = set(scene.run(work, len(metadata)))
    if isinstance(merged, str):
        last = len(metadata) - 1
        assert said == (
            f"checkpoint exp00000.3.1.4: rank {last} gives another value for `{merged}` in the"
            " metadata than a rank before it; give the same value on all ranks, or each its own"
            " key"
        )
        assert not list(scene.folder.rglob("manifest.json"))
        return
    stored = read_manifest(scene.store, EXPERIMENT, said)
    assert stored.manifest.metadata == merged | {"steps_completed": 4}


def test_metadata_that_are_no_json_fail_the_checkpoint(scene: Scene) -> None:
    """Also those of another rank than the chief, before the others wait for it."""

    def work(ranks: DistributedContext, context: CheckpointContext) -> str:
        note = {"note": object()} if ranks.rank == 1 else {}
        context.save_async(saver(ranks.rank), note, steps_completed=4, shard=True)
        with pytest.raises((ObjectError, TypeError)) as caught:
            context.wait()
        return str(caught.value)

    chief, other = scene.run(work, 2)
    assert "object" in other
    assert chief == f"checkpoint exp00000.3.1.4: rank 1: TypeError: {other}"


@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_that_fails_fails_all(scene: Scene, victim: int) -> None:
    """It hears its own failure, the others whose and what; the next checkpoint is a new chance."""

    def save(rank: int, writer: CheckpointWriter) -> None:
        saver(rank)(writer)
        if rank == victim:
            raise ZeroDivisionError("nothing left")

    said = failures(scene, save)
    assert said[victim] == "nothing left"
    others = f"checkpoint exp00000.3.1.1: rank {victim}: ZeroDivisionError: nothing left"
    assert said[1 - victim] == others


def test_what_is_unchanged_is_written_once(scene: Scene) -> None:
    """By each rank for itself, also in the next run, which goes on from the checkpoint."""

    def work(ranks: DistributedContext, context: CheckpointContext) -> list[str]:
        assert context.download_latest() in {None, "exp00000.3.1.2"}
        names = []
        for step in (1, 2):
            names.append(context.save_async(saver(ranks.rank), steps_completed=step, shard=True))
            context.wait()
        return names

    names = [*scene.run(work, 2)[0], *scene.run(work, 2, run=2, restore=["exp00000.3.1.2"])[0]]
    for rank in range(2):
        files = [
            scene.store.root / "checkpoints" / EXPERIMENT / name / f"table-{rank}"
            for name in names
        ]
        assert len(files) == 4
        assert len({file.stat().st_ino for file in files}) == 1


class Staged(Scene):
    """Ranks on two machines, whose agents carry on what is staged to a store far away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.far = FolderStore(folder / "far")
        self.refusal = ""
        self.carrying: list[threading.Thread] = []

    def run(self, work: Work, *agents: int, **changes: Any) -> list[Any]:
        """Do some work on each rank, each of which has its agent's end of a link."""

        def one(ranks: DistributedContext) -> Any:
            staged = FolderStore(self.folder / f"agent-{ranks.cross_rank}")
            link = self.links[ranks.rank] = Agent(self, staged, ranks)
            scratch = self.folder / f"scratch-{ranks.rank}"
            scratch.mkdir(exist_ok=True)
            store = StagedStore(staged, link)  # type: ignore[arg-type]  # what it wants of one
            spec = run_spec(**changes)
            return work(ranks, CheckpointContext(link, store, spec, scratch, ranks))

        came = ranked(on_agents(*agents), one)
        for thread in self.carrying:
            thread.join()
        return came


class Agent(Connection):
    """Does for a rank what its agent does."""

    def __init__(self, scene: Staged, staged: FolderStore, ranks: DistributedContext) -> None:
        super().__init__()
        self.on_object: Callable[[Uploaded], None]
        self._scene = scene
        self._staged = staged
        self._rank = ranks.rank

    def send(self, message: FromTrial) -> None:
        """Carry on, and answer, as soon as the caller waits for that."""
        super().send(message)
        thread = threading.Thread(target=self._carry_on, args=[message])
        self._scene.carrying.append(thread)
        thread.start()

    def _carry_on(self, message: FromTrial) -> None:
        scene = self._scene
        if isinstance(message, StagedPart):
            place = f"checkpoints/{EXPERIMENT}/{message.checkpoint_id}"
            for name in message.files:
                scene.far.put(f"{place}/{name}", self._staged.root / place / name)
            self.on_object(Uploaded(message.checkpoint_id, scene.refusal))
        elif isinstance(message, Stored):
            copy_checkpoint(self._staged, scene.far, EXPERIMENT, message.checkpoint_id)
            self.on_object(Uploaded(message.checkpoint_id))


def store_staged(ranks: DistributedContext, context: CheckpointContext) -> str:
    """Store a checkpoint; return what came of it."""
    name = context.save_async(saver(ranks.rank), steps_completed=1, shard=True)
    try:
        context.wait()
    except ObjectError as error:
        return str(error)
    return name


def test_agents_carry_on_what_is_on_their_machines(tmp_path: Path) -> None:
    """Those of other ranks bring their files first, so the manifest comes when all are there."""
    scene = Staged(tmp_path)
    [name] = set(scene.run(store_staged, 2, 2))
    kinds = {rank: [type(message) for message in link.said] for rank, link in scene.links.items()}
    assert kinds == {0: [Stored], 1: [], 2: [StagedPart], 3: [StagedPart]}
    here = [
        info.name.rpartition("/")[2]
        for info in FolderStore(tmp_path / "agent-0").list("checkpoints/")
    ]
    assert sorted(here) == ["manifest.json", "rank-0", "rank-1", "table-0", "table-1"]
    loaded = load_checkpoint(scene.far, EXPERIMENT, name, tmp_path / "back")
    assert len(loaded.manifest.files) == 8


def test_a_part_that_cannot_be_carried_on_fails_all(tmp_path: Path) -> None:
    """There is no manifest anywhere, and nothing is made known."""
    scene = Staged(tmp_path)
    scene.refusal = "the store refused"
    said = scene.run(store_staged, 1, 1)
    assert said == ["checkpoint exp00000.3.1.1: rank 1: the store refused", "the store refused"]
    assert scene.links[0].said == []
    assert not list(tmp_path.rglob("manifest.json"))


def test_the_run_shows_life_while_another_agent_carries_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief's agent, which watches, cannot know that the store keeps others waiting."""
    monkeypatch.setattr(writer, "_ALIVE_S", 0.01)
    staged = Staged(tmp_path)
    put = staged.far.put

    def slow(name: str, source: Path) -> None:
        while not any(isinstance(each, Heartbeat) for each in tuple(staged.links[0].said)):
            pass
        put(name, source)

    monkeypatch.setattr(staged.far, "put", slow)
    assert len(set(staged.run(store_staged, 1, 1))) == 1
