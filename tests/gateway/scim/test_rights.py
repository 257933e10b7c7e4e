"""Rights of SCIM: each of its operations as each role; tokens for provisioning, and nothing else.

SCIM is no part of the OpenAPI document, whose operations `test_authorization` goes through. What
the router knows is in one of the two.
"""

import aiohttp
import pytest

from gateway.conftest import World
from gateway.scim.conftest import Scim, provisioner
from rung.gateway import context
from rung.gateway.app import make_app, served
from rung.gateway.directory.directory import Directory
from rung.gateway.scim.routes import PERMISSION, ROUTES
from rung.rights import PERMISSIONS
from rung.storage import FolderStore
from support.gateway.client import TOKEN, Client
from support.gateway.people import bearer
from support.gateway.teams import Member, enter, members


def test_what_is_served_is_described_or_scim(world: World, store: FolderStore) -> None:
    """A route below /scim needs the permission; one that is nowhere else is a page or a probe."""
    app = make_app(world.ledger, store, token="t")  # noqa: S106 - of no server
    known = {(it.method, it.path) for it in (*served(), *ROUTES)}
    found = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }

    others = {path for method, path in found - known}
    assert others == {"/", "/healthz", "/readyz", "/{path}"}
    assert {(it.needs, it.about) for it in ROUTES} == {(PERMISSION, "cluster")}
    assert PERMISSIONS[PERMISSION].place == "cluster"


@pytest.fixture
def store(world: World) -> FolderStore:
    """Return the store of the world."""
    assert isinstance(world.store, FolderStore)
    return world.store


async def test_no_role_opens_scim(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even that of the administrator, nor a provisioner's token without a scope."""
    directory = Directory(world.ledger)
    enter(directory, members())
    monkeypatch.setattr(context, "Directory", lambda _ledger: directory)
    administrator = Member("cluster-admin-cluster", "cluster-admin", "cluster")
    everybody: list[dict[str, str]] = [{}, bearer(TOKEN), *(it.headers for it in members())]
    async with world.gateway() as client, aiohttp.ClientSession() as session:
        for headers in everybody:
            for route in ROUTES if headers in (administrator.headers, {}) else ROUTES[-4:]:
                url = client.url + route.path.replace("{id}", "admin")
                async with session.request(route.method, url, headers=headers, json={}) as answer:
                    assert answer.status == (403 if headers else 401), (route, headers)
                    assert answer.content_type == "application/scim+json"


@pytest.mark.parametrize("scope", ["user.edit", "read"])
async def test_a_token_for_more_does_not_open_it(client: Client, scope: str) -> None:
    """A token that may provision and something else besides is refused, with what would do."""
    secret = await provisioner(client, "provision", scope)
    async with aiohttp.ClientSession() as session:
        status, refused = await Scim(session, client.url, secret).call("GET", "/Users")
    assert status == 403
    assert "--scope provision" in refused["detail"]


async def test_a_token_for_provisioning_opens_nothing_else(scim: Scim, client: Client) -> None:
    """Neither what there is, nor changes by the API that SCIM may make."""
    headers = bearer(scim.secret)
    user = {"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "userName": "anna"}
    made = (await scim.call("POST", "/Users", user))[1]
    for method, path, status in (
        ("POST", f"/users/{made['id']}/deactivate", 404),
        ("POST", "/users", 403),
        ("POST", "/groups", 403),
        ("GET", "/status", 403),
        ("GET", "/agents", 403),
    ):
        body = {"name": "x"} if status == 403 and method == "POST" else None
        answer = await client.call(method, path, headers=headers, json=body)
        assert answer.status == status, (path, answer)
    assert (await client.call("GET", "/users", headers=headers)).json["items"] == []
