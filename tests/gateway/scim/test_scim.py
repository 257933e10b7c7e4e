"""Provisioning by SCIM: requests as Entra ID and Okta document them, and what becomes of them."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest

from gateway.conftest import World
from gateway.scim.conftest import Scim
from rung.events import changes
from rung.gateway.directory.asking import System
from rung.gateway.directory.state import User
from rung.gateway.identity.oidc.accounts import user_of
from rung.gateway.identity.oidc.id_token import Claims
from rung.gateway.identity.oidc.provider import SignInRefused
from rung.gateway.identity.sessions import begin_session
from support.gateway.client import Client
from support.gateway.people import bearer, change

USER = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"
ENTERPRISE = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
PATCH = "urn:ietf:params:scim:api:messages:2.0:PatchOp"

OKTA_USER: dict[str, Any] = {
    "schemas": [USER],
    "userName": "anna@example.org",
    "name": {"givenName": "Anna", "familyName": "Abel"},
    "emails": [{"primary": True, "value": "anna@example.org", "type": "work"}],
    "displayName": "Anna Abel",
    "locale": "en-US",
    "externalId": "00ujl29u0le5T6Aj10h7",
    "groups": [],
    "password": "1mz050nq",
    "active": True,
}
ENTRA_USER: dict[str, Any] = {
    "schemas": [USER, ENTERPRISE],
    "externalId": "0a21f0f2-8d2a-4f8e-bf98-7363c4aed4ef",
    "userName": "ben",
    "active": True,
    "emails": [{"primary": True, "type": "work", "value": "ben@example.org"}],
    "meta": {"resourceType": "User"},
    "name": {"formatted": "Ben Berg", "familyName": "Berg", "givenName": "Ben"},
    "roles": [],
    ENTERPRISE: {"department": "Speech"},
}


def patch(*operations: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a PATCH."""
    return {"schemas": [PATCH], "Operations": list(operations)}


async def test_okta_makes_changes_and_deactivates_a_user(scim: Scim) -> None:
    """By the requests of its documentation: look, create, PUT, deactivate."""
    query = "/Users?filter=userName%20eq%20%22anna%40example.org%22&startIndex=1&count=100"
    status, found = await scim.call("GET", query)
    assert (status, found["totalResults"], found["Resources"]) == (200, 0, [])

    status, made = await scim.call("POST", "/Users", OKTA_USER)
    assert status == 201, made
    assert made["meta"]["location"].endswith(f"/scim/v2/Users/{made['id']}")
    sent = {key: OKTA_USER[key] for key in ("userName", "name", "emails", "externalId", "active")}
    assert {key: made[key] for key in sent} == sent
    assert "password" not in made
    status, found = await scim.call("GET", query)
    assert [it["id"] for it in found["Resources"]] == [made["id"]]

    changed = {**OKTA_USER, "name": {"givenName": "Anna", "familyName": "Baum"}}
    status, now = await scim.call("PUT", f"/Users/{made['id']}", changed)
    assert (status, now["name"]["familyName"]) == (200, "Baum")
    off = patch({"op": "replace", "value": {"active": False}})
    status, now = await scim.call("PATCH", f"/Users/{made['id']}", off)
    assert (status, now["active"]) == (200, False)
    status, again = await scim.call("POST", "/Users", OKTA_USER)
    assert (status, again["scimType"], again["status"]) == (409, "uniqueness", "409")


async def test_entra_makes_and_changes_a_user(scim: Scim) -> None:
    """By the requests of its documentation, with its spelling of operations and truth values."""
    status, made = await scim.call("POST", "/Users", ENTRA_USER)
    assert status == 201, made
    assert made["displayName"] == "Ben Berg"
    path = f"/Users/{made['id']}"
    operations = (
        {"op": "Replace", "path": 'emails[type eq "work"].value', "value": "b@example.org"},
        {"op": "Add", "path": "name.givenName", "value": "Benjamin"},
        {"op": "Replace", "value": {"displayName": "Benny", "name.familyName": "Burg"}},
        {"op": "Add", "path": f"{ENTERPRISE}:department", "value": "Vision"},
    )
    status, now = await scim.call("PATCH", path, patch(*operations))
    assert status == 200, now
    assert now["emails"][0]["value"] == "b@example.org"
    assert now["name"] == {"givenName": "Benjamin", "familyName": "Burg"}
    assert now["displayName"] == "Benny"
    off = patch({"op": "Replace", "path": "active", "value": "False"})
    assert (await scim.call("PATCH", path, off))[1]["active"] is False
    on = patch({"op": "Add", "path": "active", "value": "True"})
    assert (await scim.call("PATCH", path, on))[1]["active"] is True
    assert (await scim.call("DELETE", path))[0] == 204
    assert (await scim.call("GET", path))[0] == 404
    status, found = await scim.call("GET", '/Users?filter=externalId eq "nobody"')
    assert (status, found["totalResults"]) == (200, 0)
    status, other = await scim.call("POST", "/Users", ENTRA_USER)
    assert status == 201
    assert other["id"] != made["id"]


async def test_groups_and_their_members(scim: Scim, client: Client) -> None:
    """Members join and leave as either provider asks; a role of the group is theirs."""
    ids = [(await scim.call("POST", "/Users", it))[1]["id"] for it in (OKTA_USER, ENTRA_USER)]
    wanted = {"schemas": [GROUP], "displayName": "Speech", "externalId": "8aa1a0c0-c4c3"}
    status, made = await scim.call("POST", "/Groups", wanted)
    assert status == 201, made
    path = f"/Groups/{made['id']}"
    adding = {"op": "Add", "path": "members", "value": [{"$ref": None, "value": ids[0]}]}
    status, now = await scim.call("PATCH", path, patch(adding))
    assert status == 200, now
    assert [it["value"] for it in now["members"]] == ids[:1]
    whole = {"op": "replace", "path": "members", "value": [{"value": it} for it in ids]}
    status, now = await scim.call("PATCH", path, patch(whole))
    assert sorted(it["value"] for it in now["members"]) == sorted(ids)
    given = {"role": "viewer", "group": "Speech", "workspace": "default"}
    assert (await client.call("POST", "/assignments", json=given)).status == 201
    assert (await scim.call("GET", f"/Users/{ids[0]}"))[1]["groups"][0]["display"] == "Speech"

    leaving = {"op": "Remove", "path": "members", "value": [{"value": ids[0]}]}
    assert len((await scim.call("PATCH", path, patch(leaving)))[1]["members"]) == 1
    leaving = {"op": "remove", "path": f'members[value eq "{ids[1]}"]'}
    assert "members" not in (await scim.call("PATCH", path, patch(leaving)))[1]
    named = {"op": "replace", "value": {"id": made["id"], "displayName": "Sound"}}
    assert (await scim.call("PATCH", path, patch(named)))[1]["displayName"] == "Sound"
    query = '/Groups?excludedAttributes=members&filter=displayName eq "sound"'
    status, found = await scim.call("GET", query)
    assert [it["displayName"] for it in found["Resources"]] == ["Sound"]
    stranger = {"op": "add", "path": "members", "value": [{"value": "admin"}]}
    status, refused = await scim.call("PATCH", path, patch(stranger))
    assert (status, refused["scimType"]) == (400, "invalidValue")
    assert (await scim.call("DELETE", path))[0] == 204
    assert (await scim.call("GET", path))[0] == 404


async def test_filters_and_pages(scim: Scim) -> None:
    """Comparisons, and, or, not; pages by startIndex and count; what is no filter is refused."""
    for name in ("carla", "carl", "dora"):
        user = {"schemas": [USER], "userName": name, "externalId": f"x-{name}"}
        assert (await scim.call("POST", "/Users", user))[0] == 201
    for wanted, names in {
        'userName sw "car"': ["carl", "carla"],
        'userName co "OR"': ["dora"],
        'externalId eq "x-dora"': ["dora"],
        'userName eq "dora" or externalId eq "x-carl"': ["carl", "dora"],
        'userName sw "c" and not (userName eq "carl")': ["carla"],
        "active eq false": [],
    }.items():
        status, found = await scim.call("GET", f"/Users?filter={wanted}")
        assert status == 200, found
        assert sorted(it["userName"] for it in found["Resources"]) == names
    status, found = await scim.call("GET", "/Users?startIndex=2&count=1&attributes=userName")
    assert (found["totalResults"], found["startIndex"], found["itemsPerPage"]) == (3, 2, 1)
    assert "externalId" not in found["Resources"][0]
    status, refused = await scim.call("GET", "/Users?filter=userName is anna")
    assert (status, refused["scimType"]) == (400, "invalidFilter")


async def test_versions(scim: Scim) -> None:
    """A change that is about another version is refused; an unchanged resource is not sent."""
    made = (await scim.call("POST", "/Users", ENTRA_USER))[1]
    path, version = f"/Users/{made['id']}", made["meta"]["version"]
    assert (await scim.call("GET", path, **{"If-None-Match": version}))[0] == 304
    first = patch({"op": "replace", "path": "displayName", "value": "B"})
    assert (await scim.call("PATCH", path, first, **{"If-Match": version}))[0] == 200
    assert (await scim.call("PATCH", path, first, **{"If-Match": version}))[0] == 412


async def test_deactivation_ends_streams(scim: Scim, client: Client, world: World) -> None:
    """Within five seconds; the session is gone, and the last administrator stays."""
    made = (await scim.call("POST", "/Users", OKTA_USER))[1]
    await change(
        world, changes.AssignRole(assignment_id="aa", role="cluster-admin", user_id=made["id"])
    )
    await change(world, changes.SetUserActive(user_id="admin", active=False))
    path, off = f"/Users/{made['id']}", patch({"op": "replace", "value": {"active": False}})
    status, refused = await scim.call("PATCH", path, off)
    assert (status, refused["scimType"]) == (400, "mutability")
    assert "no active cluster administrator would be left" in refused["detail"]
    assert (await scim.call("DELETE", path))[0] == 400
    await change(world, changes.SetUserActive(user_id="admin", active=True))

    system = _system(world)
    await system.directory.start()
    following = asyncio.create_task(system.directory.run())
    user = system.directory.state.users[made["id"]]
    session = await begin_session(system, user, hours=1, client="test")
    headers = bearer(session.secret)
    async with (
        aiohttp.ClientSession() as browser,
        browser.get(f"{client.url}/api/v1/log/stream", headers=headers) as stream,
    ):
        assert stream.status == 200, await stream.text()
        assert (await scim.call("PATCH", path, off))[0] == 200
        async with asyncio.timeout(5):
            with contextlib.suppress(aiohttp.ClientError):
                while await stream.content.readany():
                    pass
    assert (await client.call("GET", "/tokens", headers=headers)).status == 401
    following.cancel()


def _system(world: World) -> System:
    from rung.gateway.directory.directory import Directory  # noqa: PLC0415 - one test's
    from rung.runtime.levels import InstallationLevel  # noqa: PLC0415 - one test's

    return System(
        world.ledger, Directory(world.ledger), world.writer, InstallationLevel(world.ledger)
    )


async def test_whom_a_sign_in_is(scim: Scim, world: World) -> None:
    """By external id; a name or an address alone takes over nobody who has an external id."""
    anna = (await scim.call("POST", "/Users", OKTA_USER))[1]
    plain = (await scim.call("POST", "/Users", {"schemas": [USER], "userName": "eve"}))[1]
    system = _system(world)
    await system.directory.start()
    following = asyncio.create_task(system.directory.run())

    async def signed_in(subject: str, name: str, external_id: str) -> User:
        address = OKTA_USER["userName"]
        issuer = "https://id.example.org"
        claims = Claims(issuer, subject, name, "", address, None, external_id)
        return await user_of(system, claims)

    with pytest.raises(SignInRefused, match="somebody else"):
        await signed_in("mallory", "anna@example.org", "mallory")
    assert (await signed_in("s1", "renamed", OKTA_USER["externalId"])).id == anna["id"]
    assert (await signed_in("s1", "renamed", "")).id == anna["id"]
    with pytest.raises(SignInRefused, match="somebody else"):
        await signed_in("s2", "other", OKTA_USER["externalId"])
    assert (await signed_in("s3", "eve", "s3")).id == plain["id"]
    following.cancel()


async def test_local_users_are_left_alone(scim: Scim, client: Client) -> None:
    """They are not there for SCIM, their names are taken; an administrator hands them over."""
    local = (await client.call("POST", "/users", json={"name": "ben"})).json["id"]
    assert (await scim.call("GET", f"/Users/{local}"))[0] == 404
    assert (await scim.call("DELETE", f"/Users/{local}"))[0] == 404
    status, refused = await scim.call("POST", "/Users", ENTRA_USER)
    assert (status, refused["scimType"]) == (409, "uniqueness")
    assert "rung user edit ben --issuer https://id.example.org" in refused["detail"]
    given = await client.call("POST", "/users/ben", json={"issuer": "https://id.example.org"})
    assert given.status == 200, given
    status, found = await scim.call("GET", '/Users?filter=userName eq "BEN"')
    assert [it["id"] for it in found["Resources"]] == [local]


async def test_what_is_refused_is_refused_as_scim_does(scim: Scim) -> None:
    """Bodies that are none, fields that are missing, paths that are nowhere, methods."""
    for method, path, body, status, kind in (
        ("POST", "/Users", {"schemas": [USER]}, 400, "invalidValue"),
        ("POST", "/Users", {"schemas": [USER], "userName": "a b"}, 400, "invalidValue"),
        ("POST", "/Users", [], 400, "invalidSyntax"),
        ("PATCH", "/Users/none", patch(), 404, None),
        ("GET", "/Users?count=many", None, 400, "invalidValue"),
        ("GET", "/Nothing", None, 404, None),
        ("POST", "/Schemas", {}, 405, None),
        ("GET", "/Schemas?filter=id pr", None, 403, None),
    ):
        answered, error = await scim.call(method, path, body)
        assert (answered, error.get("scimType")) == (status, kind), (path, error)
        assert error["schemas"] == ["urn:ietf:params:scim:api:messages:2.0:Error"]
        assert error["detail"]
