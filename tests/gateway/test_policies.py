"""Policies, templates and secrets over HTTP: set, in force, named in refusals, removed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.events.changes import ChangeWorkspace
from rung.events.directory import ChangeRequested
from rung.gateway.directory.processor import DirectoryProcessor
from rung.runtime import host
from support.gateway.client import Client


@pytest.fixture
async def deciding(world: World) -> AsyncIterator[None]:
    """Have the directory decide."""
    task = asyncio.create_task(host(world.ledger, DirectoryProcessor()))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def post(client: Client, path: str, status: int, **body: Any) -> Any:
    """Send a JSON body, and return the answer of this status."""
    answer = await client.call("POST", path, json=body)
    assert answer.status == status, answer.body
    return answer.json


@pytest.mark.usefixtures("deciding")
async def test_policies_are_applied_and_named(client: Client) -> None:
    """Defaults, bounds and invariants in submissions and resolutions; removed, they are gone."""
    await post(
        client, "/policies", 201, name="few", kind="constraints", workspace="default",
        document="max_restarts: {at_most: 3}\n",
    )  # fmt: skip
    await post(
        client, "/policies", 201, name="all", kind="invariants",
        document="resources: {priority: 50}\n",
    )  # fmt: skip
    await post(
        client, "/workspaces/default/templates", 201, name="quick",
        document="max_restarts: 1\nlabels: [quick]\n",
    )  # fmt: skip
    refused = await client.submit(EXPERIMENT_FILE + "max_restarts: 9\n")
    assert refused.status == 422
    [item] = refused.json["errors"]
    assert (item["path"], item["value"], item["line"]) == ("max_restarts", "9", 11)
    assert "policy few of workspace default, set by admin allows at most 3" in item["message"]

    found = await post(client, "/config/resolve", 200, source=EXPERIMENT_FILE, template="quick")
    origins = {value["path"]: value["origin"] for value in found["values"]}
    assert found["config"]["resources"]["priority"] == 50
    assert origins["max_restarts"] == "template quick line 1"
    assert origins["name"] == "file line 1"
    assert origins["resources.priority"] == (
        "invariant of policy all of the installation, set by admin"
    )

    taken = await client.submit(EXPERIMENT_FILE)
    shown = await client.get(taken.json["url"].removeprefix("/api/v1"))
    assert shown["source"] == EXPERIMENT_FILE
    assert (shown["config"]["max_restarts"], shown["config"]["resources"]["priority"]) == (3, 50)

    listed = (await client.get("/policies"))["items"]
    assert [it["scope"] for it in sorted(listed, key=lambda it: it["name"])] == [
        "the installation",
        "workspace default",
    ]
    await post(client, "/policies/few/delete", 200)
    assert (await client.submit(EXPERIMENT_FILE + "max_restarts: 9\n")).status == 201


@pytest.mark.usefixtures("deciding")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/policies", {"kind": "constraints", "document": "max_restart: {at_most: 3}"}),
        ("/policies", {"kind": "defaults", "document": "data: {secrets: {token: hush-hush}}"}),
        ("/workspaces/default/templates", {"document": "environment: ["}),
        ("/workspaces/default/templates", {"document": "data: {db: {password: hush-hush}}"}),
    ],
)
async def test_bad_documents_are_refused(client: Client, path: str, body: Any) -> None:
    """With what is wrong; those that would put a secret on record in clear, too."""
    answer = await client.call("POST", path, json={"name": "x", **body})
    assert answer.status == 422
    assert b"hush" not in answer.body


@pytest.mark.usefixtures("deciding")
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/policies", {"kind": "defaults"}),
        ("/policies", {"kind": "defaults", "workspace": "default"}),
        ("/policies", {"kind": "defaults", "project": "default/default"}),
        ("/policies", {"kind": "defaults", "pool": "gpus"}),
        ("/workspaces/default/templates", {}),
    ],
)
async def test_what_is_only_to_be_made_replaces_nothing(
    client: Client, path: str, more: dict[str, str]
) -> None:
    """With `If-None-Match: *` a name that is in use is refused; without, it gets the document."""
    body = {"name": "x", **more}
    for document, status in (("max_restarts: 1", 201), ("max_restarts: 2", 409)):
        answer = await client.call(
            "POST", path, json={**body, "document": document}, headers={"If-None-Match": "*"}
        )
        assert answer.status == status, answer.body
    assert "there is a" in answer.json["detail"]
    [kept] = (await client.get(path))["items"]
    assert kept["document"] == "max_restarts: 1"
    changed = await post(client, path, 201, **body, document="max_restarts: 2")
    assert (changed["id"], changed["version"]) == (kept["id"], 2)


@pytest.mark.usefixtures("deciding")
async def test_where_a_policy_holds(client: Client) -> None:
    """By ids, besides in words."""
    places: list[dict[str, str]] = [
        {}, {"pool": "gpus"}, {"workspace": "default"}, {"project": "default/default"},
    ]  # fmt: skip
    found = [
        await post(
            client,
            "/policies",
            201,
            name="x",
            kind="defaults",
            document="max_restarts: 1",
            **place,
        )
        for place in places
    ]
    assert [(it["workspace_id"], it["project_id"], it["pool"]) for it in found] == [
        (None, None, None),
        (None, None, "gpus"),
        ("default", None, None),
        ("default", "default", None),
    ]


@pytest.mark.usefixtures("deciding")
async def test_secrets_of_a_workspace(world: World, client: Client) -> None:
    """Their names are shown, their values never; a file that names a missing one is refused."""
    file = EXPERIMENT_FILE + "secrets: {environment: {HF_TOKEN: hf}}\n"
    missing = await client.submit(file)
    assert (missing.status, missing.json["errors"][0]["path"]) == (422, "secrets")
    first = await client.call(
        "POST", "/workspaces/default/secrets", json={"name": "hf", "value": "hush-hush"}
    )
    second = await client.call(
        "POST", "/workspaces/default/secrets", json={"name": "hf", "value": "hush-later"}
    )
    assert (first.status, second.status) == (201, 201)
    assert first.json["id"] == second.json["id"]
    listed = await client.call("GET", "/workspaces/default/secrets")
    taken = await client.submit(file)
    assert taken.status == 201
    facts = [await world.all(topic) for topic in ("requests", "directory", "experiments")]
    for data in (first.body, second.body, listed.body, str(facts).encode()):
        assert b"hush" not in data
    await post(client, "/workspaces/default/secrets/hf/delete", 200)
    assert (await client.get("/workspaces/default/secrets"))["items"] == []
    assert (await client.submit(file)).status == 422


@pytest.mark.usefixtures("deciding")
async def test_files_meet_what_their_workspace_has(client: Client) -> None:
    """Policies, templates and secrets are those of the workspace that a file is submitted to."""
    await post(client, "/workspaces", 201, name="speech")
    await post(client, "/projects", 201, name="voices", workspace="speech")
    await post(
        client, "/policies", 201, name="few", kind="constraints", workspace="speech",
        document="max_restarts: {at_most: 3}\n",
    )  # fmt: skip
    await post(
        client, "/policies", 201, name="first", kind="invariants", project="speech/voices",
        document="resources: {priority: 7}\n",
    )  # fmt: skip
    await post(
        client, "/workspaces/speech/templates", 201, name="quick",
        document="description: quick\n",
    )  # fmt: skip
    await post(client, "/workspaces/speech/secrets", 201, name="hf", value="hush-hush")
    file = EXPERIMENT_FILE + "secrets: {environment: {HF_TOKEN: hf}}\n"
    there = file + "workspace: speech\nproject: voices\n"

    elsewhere = await client.submit(file)
    assert (elsewhere.status, elsewhere.json["errors"][0]["path"]) == (422, "secrets")
    assert "in workspace default" in elsewhere.json["errors"][0]["message"]
    taken = await client.submit(there, query="?template=quick")
    assert taken.status == 201, taken
    path = taken.json["url"].removeprefix("/api/v1")
    shown = await client.get(path)
    assert (shown["config"]["max_restarts"], shown["config"]["description"]) == (3, "quick")
    assert shown["config"]["resources"]["priority"] == 7
    refused = await client.submit(there + "max_restarts: 9\n")
    assert "few of workspace speech" in refused.json["errors"][0]["message"]
    assert (await client.submit(EXPERIMENT_FILE + "max_restarts: 9\n")).status == 201
    forked = await client.submit(file, query=f"?parent={path.rpartition('/')[2]}")
    assert forked.status == 422  # a fork names no place: it names another one than its parent did
    checked = await client.call("POST", "/experiments/validate", data=file.encode())
    assert (checked.status, checked.json["errors"][0]["path"]) == (422, "secrets")
    given = await client.call("POST", "/experiments/validate", data=there.encode())
    assert (given.status, given.json["config"]["max_restarts"]) == (200, 3)


@pytest.mark.usefixtures("deciding")
async def test_the_default_pool_of_a_workspace(world: World, client: Client) -> None:
    """Files that name no pool go there; one that does not exist is refused, with the workspace."""
    assert (
        await client.call("POST", "/pools/gpus/configure", json={"policy": "priority"})
    ).status == 202
    await post(client, "/workspaces/default", 200, default_pool="gpus")
    found = await post(client, "/config/resolve", 200, source=EXPERIMENT_FILE)
    origins = {value["path"]: (value["value"], value["origin"]) for value in found["values"]}
    assert origins["resources.resource_pool"] == ("gpus", "default pool of workspace default")
    named = EXPERIMENT_FILE + "resources: {resource_pool: nowhere}\n"
    for file, pool in ((EXPERIMENT_FILE, "gpus"), (named, "nowhere")):
        taken = await client.submit(file)
        assert taken.status == 201
        shown = await client.get(taken.json["url"].removeprefix("/api/v1"))
        assert shown["config"]["resources"]["resource_pool"] == pool
        assert shown["source"] == file
    # Set by an earlier release, which did not check it.
    change = ChangeWorkspace(workspace_id="default", default_pool="nowhere")
    await world.write(ChangeRequested(request_id="r" * 32, by="admin", at_ms=1, change=change))
    await until(
        lambda: client.get("/workspaces/default"), lambda it: it["default_pool"] == "nowhere"
    )
    refused = await client.submit(EXPERIMENT_FILE)
    assert (refused.status, refused.json["errors"][0]["path"]) == (422, "resources.resource_pool")
    assert refused.json["errors"][0]["message"] == (
        "is the default pool of workspace default; there is no pool 'nowhere'; there is default,"
        " gpus"
    )
    assert (await client.submit(named)).status == 201


async def test_without_a_key_only_files_with_secrets_are_refused(world: World) -> None:
    """The answer names the variable; nothing of the secret is stored."""
    world.secrets_key = None
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(world.gateway())
        answer = await client.submit(EXPERIMENT_FILE + "data: {secrets: {token: hush-hush}}\n")
        assert (answer.status, answer.json["type"]) == (422, "urn:rung:problem:no-secrets-key")
        assert "RUNG_SECRETS_KEY" in answer.json["detail"]
        assert (await client.submit(EXPERIMENT_FILE)).status == 201
        assert "hush" not in str(await world.all("experiments"))


@pytest.mark.usefixtures("deciding")
async def test_a_change_of_resources_is_checked(world: World, client: Client) -> None:
    """Of what runs, too: bounds and invariants hold, in batches and where the pool changes."""
    async with world.searcher():
        made = (await client.submit(EXPERIMENT_FILE)).json["id"]
        for name, kind, document in (
            ("few", "constraints", "resources.max_slots: {at_most: 2}\n"),
            ("budget", "constraints", "resources.max_slot_hours: {at_most: 9}\n"),
            ("later", "constraints", "resources.priority: {at_least: 40}\n"),
            ("even", "invariants", "resources: {weight: 1}\n"),
        ):
            await post(
                client, "/policies", 201, name=name, kind=kind, workspace="default",
                document=document,
            )  # fmt: skip
        await post(
            client, "/policies", 201, name="spare", kind="constraints", pool="gpus",
            document="resources.priority: {at_least: 90}\n",
        )  # fmt: skip
        path = f"/experiments/{made}/resources"
        for wanted, field, words in (
            ({"priority": 1}, "resources.priority", "is 1; policy later of workspace default"),
            ({"max_slots": 3}, "resources.max_slots", "is 3; policy few of workspace default"),
            ({"max_slots": 0}, "resources.max_slots", "has no limit; policy few"),
            ({"max_slot_hours": 10}, "resources.max_slot_hours", "is 10.0; policy budget of"),
            ({"max_slot_hours": 0}, "resources.max_slot_hours", "no limit; policy budget of"),
            ({"weight": 9}, "resources.weight", "it is 1 by invariant of policy even"),
            ({"pool": "gpus", "max_slots": 1}, "resources.priority", "policy spare of pool gpus"),
        ):
            answer = await client.call("POST", path, json=wanted)
            assert (answer.status, answer.kind) == (422, "invalid-resources"), answer.body
            assert answer.json["errors"][0]["path"] == field
            assert words in answer.json["detail"]
            assert "set by admin" in answer.json["detail"]
        batch = {"action": "set", "ids": [made], "resources": {"priority": 1}}
        [item] = (await post(client, "/experiments:batch", 200, **batch))["items"]
        assert "policy later" in str(item)
        changed = await post(client, path, 200, priority=45, max_slots=2, max_slot_hours=9)
    found = changed["priority"], changed["max_slots"], changed["max_slot_hours"]
    assert found == (45, 2, 9)
