"""Storage areas of workspaces: set, given to experiments for ever, and used by all who read."""

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from gateway.directory.test_routes import deciding, made, post
from gateway.test_deletion import collecting, kill
from rung.events import Payload, changes
from rung.events.checkpoint import CheckpointDeletionRequested, CheckpointStored
from rung.events.experiment import (
    DeletionRequested,
    ExperimentSubmitted,
    RetentionChanged,
)
from rung.events.trial import RunRequested
from rung.gateway import context
from rung.gateway.directory.directory import Directory
from rung.storage import Provenance, store_checkpoint
from support.gateway.client import Answer, Client
from support.gateway.directory import fold_change
from support.gateway.teams import ELSEWHERE, HOME, Member, enter

ANNA = Member("anna", "editor", "inside")
BEN = Member("ben", "editor", "outside")
FILES = {"model.pt": b"m" * 70_000, "empty": b""}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with the files of a checkpoint."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
async def admin(world: World) -> AsyncIterator[Client]:
    """Return a client of a gateway, beside which the directory decides."""
    async with deciding(world), world.gateway() as client:
        yield client


async def test_a_workspace_gets_an_area(world: World, admin: Client) -> None:
    """Two may have the same one; an empty one is none. Trying it out leaves nothing there."""
    first = await made(admin, "/workspaces", {"name": "vision", "storage": "teams/vision"})
    assert first["storage"] == "teams/vision"
    assert world.store.list("areas/") == []
    other = await made(admin, "/workspaces", {"name": "speech"})
    assert other["storage"] == ""
    for storage in ("teams/vision", ""):
        changed = await made(admin, "/workspaces/speech", {"storage": storage})
        assert changed["storage"] == storage
        assert (await admin.get("/workspaces/speech"))["storage"] == storage


@pytest.mark.parametrize("storage", ["..", "/srv", "s3://bucket/x", "Vision", "a/checkpoints"])
async def test_other_names_are_refused(world: World, admin: Client, storage: str) -> None:
    """With the field and what would be right."""
    await made(admin, "/workspaces", {"name": "speech"})
    for path in ("/workspaces", "/workspaces/speech"):
        answer = await post(admin, path, {"name": "vision", "storage": storage})
        assert (answer.status, answer.kind) == (422, "invalid")
        assert answer.json["errors"][0]["path"] == "storage"
        assert "give parts such as vision or teams/vision" in answer.json["detail"]
    assert world.store.list("") == []


async def test_where_nothing_can_be_stored_is_refused(world: World, admin: Client) -> None:
    """Where the store cannot be written there."""
    world.store.put_bytes("areas/vision", b"a file where the folder would be")
    answer = await post(admin, "/workspaces", {"name": "v", "storage": "vision"})
    assert (answer.status, answer.json["errors"][0]["path"]) == (422, "storage")
    assert "cannot open" in answer.json["detail"]


@pytest.fixture
def directory(world: World, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """Return the directory of the gateways that a test starts."""
    found = Directory(world.ledger)
    enter(found, [ANNA, BEN])
    monkeypatch.setattr(context, "Directory", lambda _ledger: found)
    return found


def _set(directory: Directory, workspace_id: str, storage: str) -> None:
    fold_change(directory, changes.ChangeWorkspace(workspace_id=workspace_id, storage=storage))


async def _submit(client: Client, text: str = EXPERIMENT_FILE, query: str = "") -> Answer:
    form = aiohttp.FormData()
    form.add_field("config", text, filename="experiment.yaml")
    return await client.call("POST", f"/experiments{query}", data=form)


async def _submitted(
    world: World, client: Client, text: str = EXPERIMENT_FILE, query: str = ""
) -> Any:
    """Submit an experiment; return its first fact."""
    answer = await _submit(client, text, query)
    assert answer.status == 201, answer.json
    facts = [it for it in await world.all("experiments") if isinstance(it, ExperimentSubmitted)]
    return next(it for it in facts if it.experiment_id == answer.json["id"])


async def test_an_experiment_keeps_the_area_of_its_submission(
    world: World, directory: Directory, client: Client
) -> None:
    """Whatever its workspace has later, and wherever it is moved; a fork gets that of its own."""
    none = await _submitted(world, client)
    assert none.areas == {}
    _set(directory, HOME, "vision")
    first = await _submitted(world, client)
    assert first.areas == {first.experiment_id: "vision"}
    _set(directory, HOME, "vision-2")
    _set(directory, ELSEWHERE, "speech")
    path = f"/experiments/{first.experiment_id}"
    assert (await client.get(path))["storage"] == "vision"
    moved = await client.call("POST", f"{path}/move?workspace=speech")
    assert moved.status == 202
    assert (await client.get(path))["storage"] == "vision"
    again = await _submitted(world, client, query=f"?parent={first.experiment_id}")
    assert again.areas == {again.experiment_id: "speech"}
    assert (await client.get(f"/experiments/{none.experiment_id}"))["storage"] == ""


async def _stored(world: World, folder: Path, experiment_id: str, area: str, number: int) -> str:
    """Store a checkpoint of the first trial where a run does, and put it on record."""
    trial_id = f"{experiment_id}.0"
    checkpoint_id = f"{trial_id}.1.{number}"
    done = store_checkpoint(
        world.store.area(area),
        folder,
        checkpoint_id=checkpoint_id,
        steps_completed=number,
        metadata={"steps_completed": number},
        provenance=Provenance(experiment_id=experiment_id, trial_id=trial_id, run=1),
    )
    await world.write(
        CheckpointStored(
            experiment_id=experiment_id,
            trial_id=trial_id,
            run=1,
            checkpoint_id=checkpoint_id,
            steps_completed=number,
            size_bytes=done.manifest.size_bytes,
            files=len(FILES),
            digest=done.digest,
        )
    )
    return checkpoint_id


async def _running(world: World, experiment_id: str) -> None:
    """Wait until its first trial is there."""

    async def requested() -> list[Payload]:
        return [
            it
            for it in await world.all("searches")
            if isinstance(it, RunRequested) and it.experiment_id == experiment_id
        ]

    await until(requested, bool)


def _names(world: World, area: str) -> list[str]:
    found = world.store.area(area).list("checkpoints/")
    return sorted({info.name.split("/")[2] for info in found})


async def _start(world: World, client: Client) -> Any:
    fact = await _submitted(world, client)
    await _running(world, fact.experiment_id)
    return fact


async def test_downloads_and_deletions_find_the_area(
    world: World, directory: Directory, client: Client, files: Path
) -> None:
    """The manifest, the tar, single files; then, after its end, retention, one, and all of it."""
    _set(directory, HOME, "vision")
    async with world.searcher():
        fact = await _start(world, client)
        name = fact.experiment_id
        keep = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 3}
        assert await _asked(client, f"/experiments/{name}/retention", keep) == []
        ids = [await _stored(world, files, name, "vision", it) for it in (1, 2, 3)]
        path = f"/checkpoints/{ids[0]}"
        shown = await until(lambda: client.call("GET", path), lambda it: it.status == 200)
        assert [it["name"] for it in shown.json["files"]] == sorted(FILES)
        file = await client.call("GET", f"{path}/file?name=model.pt")
        assert file.body == FILES["model.pt"]
        archive = await client.call("GET", f"{path}/archive")
        with tarfile.open(fileobj=io.BytesIO(archive.body)) as tar:
            assert {it.name.rpartition("/")[2] for it in tar} == {*FILES, "manifest.json"}
        (spec,) = {
            tuple(it.spec.areas.items())
            for it in await world.all("searches")
            if isinstance(it, RunRequested)
        }
        assert spec == ((name, "vision"),)
        await kill(world, client, name)
    async with collecting(world):
        keep["save_trial_latest"] = 2
        assert len(await _asked(client, f"/experiments/{name}/retention", keep)) == 1
        await until(lambda: _async(_names(world, "vision")), lambda it: it == ids[1:])
        await _asked(client, f"/checkpoints/{ids[1]}/delete")
        await until(lambda: _async(_names(world, "vision")), lambda it: it == ids[2:])
        await _asked(client, f"/experiments/{name}/delete?now=true")
        await until(lambda: _async(_names(world, "vision")), lambda it: it == [])
    asked = CheckpointDeletionRequested | RetentionChanged | DeletionRequested
    requests = [it for it in await world.all("experiments") if isinstance(it, asked)]
    assert [it.area for it in requests] == ["vision"] * 4


async def _async(value: Any) -> Any:
    return value


async def _asked(client: Client, path: str, body: dict[str, Any] | None = None) -> list[Any]:
    answer = await post(client, path, body)
    assert answer.status == 202, answer.json
    found: list[Any] = answer.json.get("items", [])
    return found


async def test_a_start_across_areas_names_both(
    world: World, directory: Directory, client: Client, files: Path
) -> None:
    """Of the experiment and of the one that it starts from, whichever of the two has one."""
    async with world.searcher():
        plain = await _start(world, client)
        bare = await _stored(world, files, plain.experiment_id, "", 1)
        _set(directory, HOME, "vision")
        placed = await _start(world, client)
        inside = await _stored(world, files, placed.experiment_id, "vision", 1)
        for path in (bare, inside):
            await until(
                lambda: client.call("GET", f"/checkpoints/{path}"),  # noqa: B023 - called here
                lambda it: it.status == 200,
            )
        from_bare = await _fork(world, client, bare)
        assert from_bare.areas == {from_bare.experiment_id: "vision"}
        _set(directory, HOME, "speech")
        across = await _fork(world, client, inside)
        assert across.areas == {
            across.experiment_id: "speech",
            placed.experiment_id: "vision",
        }
        _set(directory, HOME, "")
        out = await _fork(world, client, inside)
        assert out.areas == {placed.experiment_id: "vision"}


async def _fork(world: World, client: Client, checkpoint_id: str) -> Any:
    """Submit an experiment that starts from a checkpoint; return its first fact."""
    start = f"  source_checkpoint_uuid: {checkpoint_id}\n  metric: error\n"
    return await _submitted(
        world, client, text=EXPERIMENT_FILE.replace("  metric: error\n", start)
    )
