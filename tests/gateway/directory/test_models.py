"""Models over HTTP, with the directory and checkpoint-gc: what is registered stays."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import World, until
from gateway.directory.test_routes import deciding, made, post
from rung.checkpoint_gc.service import components
from rung.events.experiment import ExperimentEnded
from rung.events.trial import TrialClosed
from rung.runtime.service import serve
from support.gateway.checkpoint import FILES, TRIAL, store_files
from support.gateway.client import Client
from support.gateway.people import bearer
from support.gateway.scenario import EXPERIMENT
from support.runtime.decided import append_decision


@pytest.fixture
async def client(world: World, tmp_path: Path) -> AsyncIterator[Client]:
    """Return a client beside the directory and checkpoint-gc, and a search with one checkpoint."""
    await store_files(world, tmp_path, FILES)
    task = asyncio.create_task(serve(world.ledger, components(world.store)))
    async with deciding(world), world.gateway() as client:
        await until(lambda: client.get("/checkpoints/c1"), lambda it: it["state"] == "stored")
        yield client
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _end(world: World, client: Client) -> None:
    """End the search."""
    closed = TrialClosed(
        experiment_id=EXPERIMENT, trial_id=TRIAL, state="completed", reason="", restarts=0
    )
    ended = ExperimentEnded(experiment_id=EXPERIMENT, state="completed", reason="")
    for decision in (closed, ended):
        await append_decision(world.ledger, decision)
    path = f"/experiments/{EXPERIMENT}"
    await until(lambda: client.get(path), lambda it: it["state"] == "completed")


async def _member(client: Client, name: str, role: str, workspace: str) -> dict[str, str]:
    """Give a service account a role in a workspace; return the headers of its token."""
    wanted = {"name": name, "workspace": workspace}
    account = (await made(client, "/service-accounts", wanted))["id"]
    given = {"role": role, "user": account, "workspace": workspace}
    await made(client, "/assignments", given)
    token = await client.call("POST", "/tokens", json={"name": "t", "user": account})
    assert token.status == 201, token
    return bearer(token.json["secret"])


async def test_a_model_from_its_beginning_to_its_end(client: Client) -> None:
    """Created, found, changed by its version, archived, opened, moved, deleted."""
    await made(client, "/workspaces", {"name": "vision"})
    body = {"name": "Digits", "labels": ["prod"], "metadata": {"task": {"classes": 10}}}
    created = await post(client, "/models", body)
    assert (created.status, created.headers["etag"]) == (201, '"1"')
    model = created.json
    assert (model["workspace"], model["newest"], model["version_count"]) == ("default", None, 0)
    for reference in (model["id"], "digits", "default%2FDIGITS"):
        assert (await client.get(f"/models/{reference}")) == model
    taken = await post(client, "/models", {"name": "digits"})
    assert (taken.status, taken.kind) == (409, "taken")

    headers = {"If-Match": '"1"'}
    change: dict[str, Any] = {"description": "reads digits", "metadata": {}}
    changed = await made(client, "/models/digits", change, **headers)
    assert (changed["description"], changed["metadata"], changed["labels"]) == (
        "reads digits",
        {},
        ["prod"],
    )
    stale = await post(client, "/models/digits", {"name": "x"}, **headers)
    assert (stale.status, stale.kind) == (412, "changed")

    assert (await made(client, "/models/digits/archive", None))["archived"]
    for path, refused in (
        ("/models/digits", {"name": "x"}),
        ("/models/digits/versions", {"checkpoint": "c1"}),
    ):
        answer = await post(client, path, refused)
        assert (answer.status, answer.kind) == (409, "archived")
    assert not (await made(client, "/models/digits/unarchive", None))["archived"]
    moved = await made(client, "/models/digits/move", {"workspace": "vision"})
    assert moved["workspace"] == "vision"
    await made(client, "/models", {"name": "digits"})
    several = await client.call("GET", "/models/digits")
    assert (several.status, several.kind) == (409, "ambiguous")
    await made(client, "/models/vision%2Fdigits/delete", None)
    assert (await client.get("/models/digits"))["workspace"] == "default"


async def test_lists_are_filtered_and_paged(client: Client) -> None:
    """By workspace, name, label and whether they are archived."""
    await made(client, "/workspaces", {"name": "vision"})
    for name, place, labels in (
        ("digits", "default", ["prod", "small"]),
        ("letters", "default", ["small"]),
        ("faces", "vision", ["prod"]),
    ):
        await made(client, "/models", {"name": name, "workspace": place, "labels": labels})
    await made(client, "/models/letters/archive", None)
    for query, expected in {
        "": {"digits", "letters", "faces"},
        "workspace=vision": {"faces"},
        "name=ETT": {"letters"},
        "label=prod": {"digits", "faces"},
        "label=small&archived=false": {"digits"},
        "label=smal": set(),
    }.items():
        found = await client.get(f"/models?{query}")
        assert {it["name"] for it in found["items"]} == expected, query
    first = await client.get("/models?limit=2")
    rest = await client.get(f"/models?limit=2&cursor={first['next_cursor']}")
    assert len(first["items"] + rest["items"]) == 3
    assert rest["next_cursor"] is None


async def test_versions_are_numbered_and_name_their_checkpoint(client: Client) -> None:
    """From 1 on, also after one was deleted; the newest comes first."""
    await made(client, "/models", {"name": "digits"})
    body = {"checkpoint": "c1", "name": "first", "notes": "# Good", "labels": ["a"]}
    headers = {"Idempotency-Key": "k"}
    made_ = [await post(client, "/models/digits/versions", body, **headers) for _ in range(2)]
    assert [(it.status, it.headers["etag"]) for it in made_] == [(201, '"1"')] * 2
    assert made_[0].json == made_[1].json
    version = made_[0].json
    assert (version["number"], version["experiment_id"], version["trial_id"]) == (
        1,
        EXPERIMENT,
        TRIAL,
    )
    other = await post(client, "/models/digits/versions", {"checkpoint": "c1"}, **headers)
    assert other.kind == "idempotency-key-reused"
    for number in (2, 3):
        found = await made(client, "/models/digits/versions", {"checkpoint": "c1"})
        assert found["number"] == number
    await made(client, "/models/digits/versions/3/delete", None)
    assert (await made(client, "/models/digits/versions", {"checkpoint": "c1"}))["number"] == 4
    model = await client.get("/models/digits")
    assert (model["newest"], model["version_count"]) == (4, 3)
    listed = await client.get("/models/digits/versions?limit=2")
    assert [it["number"] for it in listed["items"]] == [4, 2]
    cursor = listed["next_cursor"]
    listed = await client.get(f"/models/digits/versions?limit=2&cursor={cursor}")
    assert [it["number"] for it in listed["items"]] == [1]
    listed = await client.get("/models/digits/versions?label=a")
    assert [it["number"] for it in listed["items"]] == [1]

    changed = await made(
        client, "/models/digits/versions/1", {"name": "best"}, **{"If-Match": '"1"'}
    )
    assert (changed["name"], changed["notes"], changed["version"]) == ("best", "# Good", 2)
    stale = await post(client, "/models/digits/versions/1", {"name": "x"}, **{"If-Match": '"1"'})
    assert stale.kind == "changed"
    assert (await client.get("/models/digits/versions/newest"))["number"] == 4
    assert (await client.call("GET", "/models/digits/versions/3")).status == 404


async def test_what_a_version_needs_is_not_deleted(world: World, client: Client) -> None:
    """Alone, with its experiment, or by another retention; its name is for who sees the model."""
    await made(client, "/workspaces", {"name": "vision"})
    cleaner = await _member(client, "cleo", "editor", "default")
    await made(client, "/models", {"name": "digits", "workspace": "vision"})
    await made(client, "/models/digits/versions", {"checkpoint": "c1"})
    await _end(world, client)
    paths = "/checkpoints/c1/delete?force=true", f"/experiments/{EXPERIMENT}/delete?force=true"
    for path in paths:
        answer = await post(client, path)
        assert (answer.status, answer.kind) == (409, "in-use")
        assert "version 1 of model digits of workspace vision" in answer.json["detail"]
        hidden = await post(client, path, None, **cleaner)
        assert (hidden.status, hidden.kind) == (409, "in-use")
        assert "digits" not in hidden.json["detail"]
        assert "vision" not in hidden.json["detail"]
    batch = {"action": "delete", "ids": [EXPERIMENT]}
    answer = await post(client, "/experiments:batch", batch)
    assert [it["kind"] for it in answer.json["items"]] == ["in-use"]
    none = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    retained = await post(client, f"/experiments/{EXPERIMENT}/retention", none)
    assert (retained.status, retained.json["items"]) == (202, [])

    await made(client, "/models/digits/versions/1/delete", None)
    assert (await post(client, paths[0])).status == 202
    async with asyncio.timeout(30):
        while (await client.get("/checkpoints/c1"))["state"] != "deleted":
            await post(client, paths[0])  # the release of the version is relayed meanwhile
    gone = await post(client, "/models/digits/versions", {"checkpoint": "c1"})
    assert (gone.status, gone.kind) == (410, "gone")


async def test_a_version_gives_its_checkpoint_to_who_sees_the_model(client: Client) -> None:
    """`checkpoint.download` in the model's workspace is enough, and is needed to register."""
    await made(client, "/workspaces", {"name": "vision"})
    viewer = await _member(client, "vera", "model-registry-viewer", "vision")
    editor = await _member(client, "eddi", "editor", "vision")
    await made(client, "/models", {"name": "digits", "workspace": "vision"})
    refused = await post(client, "/models/digits/versions", {"checkpoint": "c1"}, **editor)
    assert (refused.status, refused.json["errors"][0]["path"]) == (422, "checkpoint")
    await made(client, "/models/digits/versions", {"checkpoint": "c1"})

    shown = await client.get("/models/digits/versions/1", headers=dict(viewer))
    assert shown["checkpoint_id"] == "c1"
    assert (await client.call("GET", "/checkpoints/c1", headers=dict(viewer))).status == 404
    path = "/models/digits/versions/1"
    detail = await client.get(f"{path}/checkpoint", headers=dict(viewer))
    assert (detail["id"], {it["name"] for it in detail["files"]}) == ("c1", set(FILES))
    archive = await client.call("GET", f"{path}/archive", headers=dict(viewer))
    with tarfile.open(fileobj=io.BytesIO(archive.body)) as found:
        assert set(FILES) < {name.removeprefix("c1/") for name in found.getnames()}
    file = await client.call("GET", f"{path}/file?name=model.pt", headers=dict(viewer))
    assert file.body == FILES["model.pt"]
    assert (await post(client, "/models/digits", {"name": "x"}, **viewer)).status == 403
    outsider = await _member(client, "olga", "editor", "default")
    assert (await client.call("GET", path, headers=dict(outsider))).status == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "m", "labels": ["x", "x"]}, "labels"),
        ({"name": "m", "labels": [""]}, "labels"),
        ({"name": "m", "metadata": {"k": "v" * 100_001}}, "metadata"),
        ({"name": "m", "description": "d" * 10_001}, "description"),
        ({"name": "m", "workspace": "none"}, "workspace"),
        ({"name": "m", "metadata": []}, "metadata"),
    ],
)
async def test_what_is_wrong_is_named(client: Client, body: dict[str, Any], field: str) -> None:
    """With the path of the field."""
    answer = await post(client, "/models", body)
    assert answer.status == 422, answer
    assert answer.json["errors"][0]["path"] == field
