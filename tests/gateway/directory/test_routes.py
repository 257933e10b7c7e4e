"""Users, groups, workspaces, projects and roles over HTTP."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.conftest import World
from rung.events.changes import subject_of_change
from rung.events.directory import DirectoryChanged
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.timestamp import timestamp
from rung.runtime import host
from support.gateway.client import Answer, Client


@contextlib.asynccontextmanager
async def deciding(world: World) -> AsyncIterator[None]:
    """Run the processor."""
    task = asyncio.create_task(host(world.ledger, DirectoryProcessor()))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    """Return a client of a gateway, beside which the processor runs."""
    async with deciding(world), world.gateway() as client:
        yield client


async def post(client: Client, path: str, body: Any = None, **headers: str) -> Answer:
    """Send a change."""
    data = None if body is None else json.dumps(body)
    return await client.call("POST", path, data=data, headers=dict(headers))


async def made(client: Client, path: str, body: Any, **headers: str) -> Any:
    """Send a change that is made; return the answer."""
    answer = await post(client, path, body, **headers)
    assert answer.status in {200, 201}, answer
    return answer.json


async def test_what_is_there_from_the_beginning(client: Client) -> None:
    """One user, one workspace, one project, one role."""
    users = await client.get("/users")
    workspaces = await client.get("/workspaces")
    projects = await client.get("/projects")
    assignments = await client.get("/assignments")
    assert [it["name"] for it in users["items"]] == ["admin"]
    assert [it["name"] for it in workspaces["items"]] == ["default"]
    assert workspaces["items"][0]["created_at"] is None
    assert [it["workspace"] for it in projects["items"]] == ["default"]
    assert [it["role"] for it in assignments["items"]] == ["cluster-admin"]
    roles = await client.get("/roles")
    assert "auditor" in [it["name"] for it in roles["items"]]


async def test_times_are_to_the_millisecond(world: World, client: Client) -> None:
    """As all times of the API: what is on record of a change is what it shows."""
    user = await made(client, "/users", {"name": "anna", "email": "anna@example.org"})
    role = {"role": "viewer", "user": "anna", "workspace": "default"}
    assigned = await made(client, "/assignments", role)
    (at_ms,) = [
        it.at_ms
        for it in await world.all("directory")
        if isinstance(it, DirectoryChanged)
        and subject_of_change(it.change) == f"user/{user['id']}"
    ]
    assert user["created_at"] == user["changed_at"] == timestamp(at_ms)
    for time in (user["created_at"], assigned["created_at"]):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time), time


async def test_the_life_of_a_user(client: Client) -> None:
    """Created, found by name, changed, deactivated, activated again."""
    user = await made(client, "/users", {"name": "anna", "email": "anna@example.org"})
    assert (await client.get("/users/Anna"))["id"] == user["id"]
    changed = await made(client, "/users/anna", {"display_name": "Anna A."})
    assert (changed["display_name"], changed["version"]) == ("Anna A.", 2)
    gone = await made(client, "/users/anna/deactivate", None)
    assert not gone["active"]
    found = await client.get("/users?active=false")
    assert [it["id"] for it in found["items"]] == [user["id"]]
    back = await made(client, "/users/anna/activate", None)
    assert back["active"]
    account = await made(client, "/service-accounts", {"name": "bot", "workspace": "default"})
    assert (account["kind"], account["workspace_id"]) == ("service", "default")
    assert (await client.call("GET", "/users/bot")).status == 404
    await made(client, "/service-accounts/bot", {"name": "robot"})
    await made(client, "/service-accounts/robot/deactivate", None)
    await made(client, "/service-accounts/robot/activate", None)
    shown = await client.get("/service-accounts/robot")
    assert [shown] == (await client.get("/service-accounts"))["items"]


async def test_a_group_and_its_roles(client: Client) -> None:
    """Members by name; deleted with the roles that it has; a repetition has no further effect."""
    await made(client, "/users", {"name": "anna"})
    group = await made(client, "/groups", {"name": "Team A"})
    members = await made(client, "/groups/team a/members", {"add": ["anna"]})
    assert [it["name"] for it in members["members"]] == ["anna"]
    renamed = await made(client, "/groups/team a", {"name": "Team B", "description": "x"})
    assert renamed["description"] == "x"
    body = {"role": "editor", "group": "team b", "workspace": "default"}
    role = await made(client, "/assignments", body)
    assert (role["group"], role["workspace"], role["by"]) == ("Team B", "default", "admin")
    again = await post(client, "/assignments", body)
    assert (again.status, again.kind) == (409, "taken")
    found = await client.get("/assignments?group=team%20b&role=editor&workspace=default")
    assert [it["id"] for it in found["items"]] == [role["id"]]
    assert await client.get(f"/assignments/{role['id']}") == role
    assert (await client.get("/users?group=" + group["id"]))["items"][0]["name"] == "anna"
    for _ in range(2):
        removed = await made(client, "/groups/team b/delete", None, **{"Idempotency-Key": "k"})
        assert removed == {"id": group["id"]}
    assert (await client.call("GET", f"/assignments/{role['id']}")).status == 404
    assert (await client.get("/groups"))["items"] == []


async def test_workspaces_and_projects(client: Client) -> None:
    """Created, renamed, moved, archived; a project is found as WORKSPACE/PROJECT."""
    await made(client, "/users", {"name": "anna"})
    vision = await made(client, "/workspaces", {"name": "vision", "owner": "anna"})
    assert vision["owner"] == "anna"
    assert "experiment.delete" in vision["permissions"]
    for path in ("/workspaces", "/workspaces/vision"):
        lack = await post(client, path, {"name": "vision 2", "default_pool": "gpus"})
        assert (lack.status, lack.json["errors"][0]["path"]) == (422, "default_pool")
        assert "no pool 'gpus'; there is default" in lack.json["detail"]
    assert (await post(client, "/pools/gpus/configure", {"policy": "priority"})).status == 202
    changed = await made(client, "/workspaces/vision", {"default_pool": "gpus", "owner": "admin"})
    assert (changed["default_pool"], changed["owner"]) == ("gpus", "admin")
    project = await made(client, "/projects", {"workspace": "vision", "name": "digits"})
    assert (await client.get("/projects/vision%2Fdigits"))["id"] == project["id"]
    await made(client, "/projects/vision%2Fdigits", {"description": "x"})
    moved = await made(client, "/projects/vision%2Fdigits/move", {"workspace": "default"})
    assert moved["workspace"] == "default"
    assert (await client.call("GET", "/projects/vision%2Fdigits")).status == 404
    await made(client, f"/projects/{project['id']}/archive", None)
    assert len((await client.get("/projects?archived=true"))["items"]) == 1
    await made(client, f"/projects/{project['id']}/unarchive", None)
    await made(client, "/workspaces/vision/archive", None)
    closed = await post(client, "/projects", {"workspace": "vision", "name": "more"})
    assert (closed.status, closed.kind) == (409, "archived")
    await made(client, "/workspaces/vision/unarchive", None)
    only = await client.get("/projects?workspace=vision")
    assert only["items"] == []
    stays = await post(client, "/workspaces/default/archive")
    assert (stays.status, stays.kind) == (409, "built-in")


async def test_a_refusal_names_the_field(client: Client) -> None:
    """What is wrong with a body, whoever found it."""
    for path, body, status, field in (
        ("/users", {"name": "a b"}, 422, "name"),
        ("/users", {"name": "ADMIN"}, 409, "name"),
        ("/users", {"name": 3}, 422, "name"),
        ("/users", {"nam": "x"}, 422, "nam"),
        ("/workspaces", {"name": "x", "owner": "nobody"}, 422, "owner"),
        ("/projects", {"name": "x", "workspace": "nowhere"}, 422, "workspace"),
        ("/assignments", {"role": "emperor", "user": "admin"}, 422, "role"),
        ("/assignments", {"role": "viewer"}, 422, "user_id"),
    ):
        answer = await post(client, path, body)
        assert answer.status == status, answer
        assert field in answer.json["errors"][0]["path"] + answer.json["detail"], answer
    assert (await post(client, "/users")).status == 400
    last = await post(client, "/users/admin/deactivate")
    assert (last.status, last.kind) == (409, "last-administrator")
    assert (await post(client, "/assignments/admin/delete")).kind == "last-administrator"
    assert (await client.call("GET", "/workspaces/nowhere")).status == 404


async def test_the_first_of_two_changes_wins(client: Client) -> None:
    """By the ETag of what was seen."""
    await made(client, "/workspaces", {"name": "vision"})
    shown = await client.call("GET", "/workspaces/vision")
    tag = {"If-Match": shown.headers["etag"]}
    await made(client, "/workspaces/vision", {"description": "mine"}, **tag)
    late = await post(client, "/workspaces/vision", {"description": "yours"}, **tag)
    assert (late.status, late.kind) == (412, "changed")
    odd = await post(client, "/workspaces/vision", {"description": "x"}, **{"If-Match": "new"})
    assert odd.status == 400


async def test_a_key_makes_one_change(world: World, client: Client) -> None:
    """Also through another gateway, and long after; not another change under the same key."""
    key = {"Idempotency-Key": "once"}
    first = await made(client, "/users", {"name": "anna"}, **key)
    assert await made(client, "/users", {"name": "anna"}, **key) == first
    async with world.gateway() as other:  # it began behind the answer
        assert await made(other, "/users", {"name": "anna"}, **key) == first
        reused = await post(other, "/users", {"name": "bob"}, **key)
    assert (reused.status, reused.kind) == (422, "idempotency-key-reused")
    assert len((await client.get("/users"))["items"]) == 2


async def test_another_replica_shows_what_was_written(world: World, client: Client) -> None:
    """A request that carries `Rung-After` waits for it."""
    async with world.gateway() as other:
        answer = await post(client, "/workspaces", {"name": "vision"})
        after = {"Rung-After": answer.headers["rung-after"]}
        found = await other.call("GET", "/workspaces/vision", headers=after)
    assert found.json == answer.json


async def test_pages(client: Client) -> None:
    """A list goes on by its cursor."""
    for number in range(5):
        await made(client, "/workspaces", {"name": f"w{number}"})
    names, cursor = [], ""
    while True:
        page = await client.get(f"/workspaces?limit=2{cursor}")
        names += [it["name"] for it in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert sorted(names) == ["default", "w0", "w1", "w2", "w3", "w4"]


async def test_without_a_processor_nothing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is on record; sent again under its key it is answered once one runs."""
    monkeypatch.setattr("rung.gateway.directory.asking.PATIENCE_S", 0.2)
    key = {"Idempotency-Key": "once"}
    async with world.gateway() as client:
        late = await post(client, "/users", {"name": "anna"}, **key)
        assert (late.status, late.kind) == (503, "unavailable")
        monkeypatch.undo()
        async with deciding(world):
            user = await made(client, "/users", {"name": "anna"}, **key)
    assert user["name"] == "anna"


async def test_saved_searches(client: Client) -> None:
    """One's own are one's own; shared ones are seen where one may, and changed where one may."""
    await made(client, "/workspaces", {"name": "vision"})
    tokens = {}
    for name, role in (("anna", "editor"), ("ben", "viewer"), ("carla", None)):
        account = await made(client, "/service-accounts", {"name": name})
        if role is not None:
            assignment = {"role": role, "user": account["id"], "workspace": "vision"}
            await made(client, "/assignments", assignment)
        issued = await client.call("POST", "/tokens", json={"name": "t", "user": name})
        tokens[name] = {"Authorization": f"Bearer {issued.json['secret']}"}

    async def seen(name: str) -> list[tuple[str, str, bool]]:
        found = await client.get("/searches", headers=tokens[name])
        return sorted((it["name"], it["query"], it["editable"]) for it in found["items"])

    own = {"name": "failed", "query": "state:errored owner:me"}
    shared = {"name": "good", "query": "best<0.1", "workspace": "vision"}
    first = await made(client, "/searches", own, **tokens["anna"])
    again = await made(client, "/searches", own | {"query": "older:7d"}, **tokens["anna"])
    assert (again["id"], again["version"], again["user"]) == (first["id"], 2, "anna")
    common = await made(client, "/searches", shared, **tokens["anna"])
    assert await seen("anna") == [("failed", "older:7d", True), ("good", "best<0.1", True)]
    assert await seen("ben") == [("good", "best<0.1", False)]
    assert await seen("carla") == []

    for name, path, body, status in (
        ("ben", "/searches", shared, 403),
        ("ben", f"/searches/{common['id']}/delete", None, 403),
        ("ben", "/searches/failed/delete", None, 404),
        ("ben", f"/searches/{first['id']}/delete", None, 404),
        ("carla", "/searches", shared, 422),
        ("carla", f"/searches/{common['id']}/delete", None, 404),
        ("anna", "/searches", {"name": "x", "query": "nonsense:1"}, 422),
        ("anna", "/searches", {"name": "", "query": "x"}, 422),
    ):
        answer = await post(client, path, body, **tokens[name])
        assert answer.status == status, (name, path, answer)
    late = await post(client, "/searches", own, **tokens["anna"], **{"If-Match": '"1"'})
    assert late.status == 412
    for _ in range(2):
        key = {"Idempotency-Key": "k"}
        removed = await made(client, "/searches/failed/delete", None, **tokens["anna"], **key)
        assert removed == {"id": first["id"]}
    await made(client, f"/searches/{common['id']}/delete", None, **tokens["anna"])
    assert await seen("anna") == []
