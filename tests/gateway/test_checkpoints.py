"""Checkpoints: listed with their state, and fetched as a tar that is whole or cut."""

import io
import tarfile
from pathlib import Path

import pytest

from gateway.conftest import World
from rung.api import CheckpointPhase
from rung.client import AsyncClient, ClientError
from rung.events.checkpoint import CheckpointDamaged, CheckpointDeleted
from rung.gateway.projections.experiment import Checkpoint, checkpoint_phase
from rung.gateway.serializers import experiments as serializers
from rung.storage import Provenance, load_checkpoint, store_checkpoint
from support.gateway.checkpoint import FILES, TRIAL, store_files
from support.gateway.client import TOKEN
from support.gateway.scenario import EXPERIMENT, History, stored, submitted


async def test_checkpoint_is_shown_with_its_files(world: World, tmp_path: Path) -> None:
    """State, step, the validation of that step, and the manifest's files."""
    await store_files(world, tmp_path, FILES)
    async with world.gateway() as client:
        shown = await client.get("/checkpoints/c1")
        listed = await client.get(f"/experiments/{EXPERIMENT}/checkpoints")
        of_trial = await client.get(f"/trials/{TRIAL}/checkpoints")
        best = await client.get(f"/experiments/{EXPERIMENT}/best")

    assert (shown["state"], shown["steps_completed"]) == ("stored", 30)
    assert shown["metrics"] == {"error": 0.5}
    assert [it["name"] for it in shown["files"]] == sorted(FILES)
    assert shown["metadata"] == {"steps_completed": 30}
    assert listed == of_trial
    assert best["checkpoint"] == listed["items"][0]


async def test_a_page_of_checkpoints_costs_what_it_shows(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages follow each other in the order of arrival, and what is on others is not looked at."""
    looked_at: list[str] = []

    def phase(item: Checkpoint) -> CheckpointPhase:
        looked_at.append(item.id)
        return checkpoint_phase(item)

    monkeypatch.setattr(serializers, "checkpoint_phase", phase)
    await store_files(world, tmp_path, FILES)
    await world.write(*(stored(TRIAL, 1, 30 + number, number) for number in range(2, 6)))
    async with world.gateway() as client:
        for path in (f"/experiments/{EXPERIMENT}/checkpoints", f"/trials/{TRIAL}/checkpoints"):
            looked_at.clear()
            first = await client.get(f"{path}?limit=2")
            assert looked_at == [it["id"] for it in first["items"]] == ["c1", "c2"]
            second = await client.get(f"{path}?limit=2&cursor={first['next_cursor']}")
            last = await client.get(f"{path}?limit=2&cursor={second['next_cursor']}")
            assert [it["id"] for it in second["items"] + last["items"]] == ["c3", "c4", "c5"]
            assert [it["metrics"] for it in first["items"]] == [{"error": 0.5}, {}]
            assert last["next_cursor"] is None


async def test_archive_is_the_checkpoint(world: World, tmp_path: Path) -> None:
    """The tar holds the files and the manifest; unpacked into a store, the checkpoint loads."""
    await store_files(world, tmp_path, FILES)
    async with world.gateway() as client:
        answer = await client.call("GET", "/checkpoints/c1/archive")
    target = tmp_path / "target"
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        tar.extractall(target / "checkpoints" / EXPERIMENT, filter="data")
    world.store.delete("checkpoints/")
    for path in sorted(target.rglob("*")):
        if path.is_file():
            world.store.put(path.relative_to(target).as_posix(), path)
    loaded = load_checkpoint(world.store, EXPERIMENT, "c1", tmp_path / "loaded")

    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.headers["content-disposition"] == 'attachment; filename="c1.tar"'
    assert {name: (tmp_path / "loaded" / name).read_bytes() for name in FILES} == FILES
    assert loaded.manifest.checkpoint_id == "c1"


async def test_deleted_checkpoint_is_gone(world: World, tmp_path: Path) -> None:
    """410, with the reason; its facts are still shown."""
    await store_files(world, tmp_path, FILES)
    await world.write(
        CheckpointDeleted(experiment_id=EXPERIMENT, trial_id=TRIAL, checkpoint_id="c1")
    )
    async with world.gateway() as client:
        answer = await client.call("GET", "/checkpoints/c1/archive")
        shown = await client.get("/checkpoints/c1")

    assert (answer.status, answer.kind) == (410, "gone")
    assert (shown["state"], shown["files"]) == ("deleted", [])
    assert shown["deleted_at"]


async def test_lost_files_are_gone(world: World) -> None:
    """A checkpoint on record whose files are not in the store: 410."""
    history = History()
    history.write(submitted(max_trials=1), origin="client/x")
    history.decide()
    history.write(stored(TRIAL, 1, 10, 7))
    await world.play(history)
    async with world.gateway() as client:
        answer = await client.call("GET", "/checkpoints/c7/archive")
        shown = await client.get("/checkpoints/c7")

    assert answer.status == 410
    assert shown["files"] == []


@pytest.mark.parametrize("damage", ["manifest.json", "model.pt", "missing"])
async def test_damaged_checkpoint_conflicts(world: World, tmp_path: Path, damage: str) -> None:
    """What differs from the manifest in size is refused before anything is sent."""
    await store_files(world, tmp_path, FILES)
    prefix = f"checkpoints/{EXPERIMENT}/c1/"
    if damage == "missing":
        world.store.delete(f"{prefix}empty")
    else:
        world.store.put_bytes(prefix + damage, world.store.read(prefix + damage)[:-1])
    async with world.gateway() as client:
        answer = await client.call("GET", "/checkpoints/c1/archive")

    assert (answer.status, answer.kind) == (409, "damaged")


HOSTILE = {
    "NUL": b"\0" * 64,
    "not UTF-8": b'{"sha256": "\xff", "manifest": {}}',
    "deep": b'{"sha256": "", "manifest": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    "nothing": b"",
    "a list": b"[1]",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_manifest_conflicts(world: World, tmp_path: Path, name: str) -> None:
    """Whatever lies where a manifest should: the checkpoint is damaged, nothing else is."""
    await store_files(world, tmp_path, FILES)
    world.store.put_bytes(f"checkpoints/{EXPERIMENT}/c1/manifest.json", HOSTILE[name])
    async with world.gateway() as client:
        archive = await client.call("GET", "/checkpoints/c1/archive")
        file = await client.call("GET", "/checkpoints/c1/file?name=model.pt")
        shown = await client.get("/checkpoints/c1")

    assert (archive.status, archive.kind) == (409, "damaged")
    assert (file.status, file.kind) == (409, "damaged")
    assert shown["files"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/checkpoints/c1/archive",
        "/checkpoints/c1/file?name=model.pt",
        "/checkpoints/c1/file?name=model.pt&redirect=false",
    ],
)
@pytest.mark.parametrize("asked", ["", "bytes=10-19"])
async def test_a_flipped_bit_conflicts(
    world: World, tmp_path: Path, path: str, asked: str
) -> None:
    """Nothing of a file of the right size with other bytes is sent, and the answer names it."""
    await store_files(world, tmp_path, FILES)
    name = f"checkpoints/{EXPERIMENT}/c1/model.pt"
    async with world.gateway() as client:
        whole = await client.call("GET", path)  # it is checked, and remembered
        world.store.put_bytes(name, b"n" + world.store.read(name)[1:])
        headers = {"Range": asked} if asked else {}
        answer = await client.call("GET", path, headers=headers)
        other = await client.call("GET", "/checkpoints/c1/file?name=empty")

    assert whole.status == 200
    assert (answer.status, answer.kind) == (409, "damaged")
    assert "model.pt has the digest" in answer.json["detail"]
    assert other.status == 200


async def test_a_download_of_a_damaged_checkpoint_says_so(world: World, tmp_path: Path) -> None:
    """The client names the file and leaves nothing that looks whole."""
    await store_files(world, tmp_path, FILES)
    name = f"checkpoints/{EXPERIMENT}/c1/model.pt"
    world.store.put_bytes(name, b"n" + world.store.read(name)[1:])
    async with world.gateway() as gateway, AsyncClient(gateway.url, TOKEN) as client:
        with pytest.raises(ClientError, match=r"model\.pt"):
            await client.download("c1", tmp_path / "best")
    assert not (tmp_path / "best").exists()


async def test_another_manifest_is_damage(world: World, tmp_path: Path) -> None:
    """Files and manifest that agree with each other, and not with the record, are not sent."""
    await store_files(world, tmp_path, FILES)
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"another model")
    store_checkpoint(
        world.store,
        folder,
        checkpoint_id="c1",
        steps_completed=30,
        metadata={},
        provenance=Provenance(experiment_id=EXPERIMENT, trial_id=TRIAL, run=1),
    )
    async with world.gateway() as client:
        answers = [
            await client.call("GET", "/checkpoints/c1/archive"),
            await client.call("GET", "/checkpoints/c1/file?name=model.pt"),
        ]
    for answer in answers:
        assert (answer.status, answer.kind) == (409, "damaged")
        assert "manifest.json is not the one on record" in answer.json["detail"]


async def test_damage_on_record_is_shown(world: World, tmp_path: Path) -> None:
    """A checkpoint that a run found damaged is shown so, and is no longer the best one's."""
    await store_files(world, tmp_path, FILES)
    await world.write(
        CheckpointDamaged(
            experiment_id=EXPERIMENT, trial_id=TRIAL, run=2, checkpoint_id="c1", reason="short"
        )
    )
    async with world.gateway() as client:
        shown = await client.get("/checkpoints/c1")
        best = await client.get(f"/experiments/{EXPERIMENT}/best")

    assert (shown["state"], shown["reason"]) == ("damaged", "short")
    assert best["checkpoint"] is None


async def test_beginning_of_an_id(world: World) -> None:
    """A checkpoint's id may be shortened as long as it stays unambiguous."""
    history = History()
    history.write(submitted(max_trials=1), origin="client/x")
    history.decide()
    for number in (70, 71, 80):
        history.write(stored(TRIAL, 1, number, number))
    await world.play(history)
    async with world.gateway() as client:
        found = await client.get("/checkpoints/c8")
        ambiguous = await client.call("GET", "/checkpoints/c7")

    assert found["id"] == "c80"
    assert (ambiguous.status, ambiguous.kind) == (409, "ambiguous")
