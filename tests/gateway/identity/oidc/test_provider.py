"""Signing in by an identity provider: what a hostile browser, code, provider or neighbour gets."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.conftest import World, patient
from rung.events.changes import CreateGroup, CreateUser, SetUserActive
from rung.gateway.identity.oidc.provider import ProviderSettings
from rung.gateway.identity.settings import IdentitySettings
from support.gateway.client import Answer, Client
from support.gateway.people import bearer, change, changes_on_record
from support.gateway.scripted_provider import CODE, ScriptedProvider

VERIFIER = "v" * 43
NONCE = STATE = "n" * 32
LOOPBACK = "http://127.0.0.1:9/signed-in"


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    """Return a provider that does all right so far."""
    async with ScriptedProvider().serve() as provider:
        provider.nonce = NONCE
        yield provider


@pytest.fixture
async def client(world: World, provider: ScriptedProvider) -> AsyncIterator[Client]:
    """Return a client of a gateway that trusts the provider."""
    settings = ProviderSettings(
        issuer=provider.issuer,
        client_id="rung",
        client_secret="secret of the page",  # noqa: S106 - of a server that lives for one test
        cli_client_id="rung-cli",
    )
    identity = IdentitySettings(public_url="http://127.0.0.1:8080", provider=settings)
    world.settings = patient(identity=identity)
    async with world.gateway() as client:
        yield client


async def _with_code(client: Client, **other: str) -> Answer:
    body = {
        "code": CODE,
        "code_verifier": VERIFIER,
        "redirect_uri": LOOPBACK,
        "nonce": NONCE,
    } | other
    return await client.call("POST", "/auth/code", json=body)


async def test_the_first_sign_in_makes_the_user(
    client: Client, world: World, provider: ScriptedProvider
) -> None:
    """With the provider's groups; the second finds it, and follows the groups."""
    answer = await _with_code(client)
    assert (answer.status, answer.json["user"]) == (200, "anna")
    (asked,) = provider.asked
    assert (asked["code_verifier"], asked["client_id"]) == (VERIFIER, "rung-cli")
    tags = [type(it).__name__ for it in await changes_on_record(world)]
    assert tags[:5] == [
        "CreateUser",
        "LinkIdentity",
        "CreateGroup",
        "SyncMemberships",
        "IssueToken",
    ]
    provider.codes.add(CODE)
    provider.claims = {"groups": [], "preferred_username": "another"}
    again = await _with_code(client)
    assert again.json["user"] == "anna"
    tags = [type(it).__name__ for it in await changes_on_record(world)]
    assert tags.count("CreateUser") == 1
    assert tags.count("SyncMemberships") == 2


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"aud": "rung"},
        {"aud": "another"},
        {"nonce": "another"},
        {"nonce": ...},
        {"exp": 1},
        {"sub": ...},
        {"preferred_username": "an\r\nna"},
    ],
    ids=str,
)
async def test_id_tokens_that_are_refused(
    client: Client, world: World, provider: ScriptedProvider, claims: dict[str, Any]
) -> None:
    """Nobody is let in, and nobody made."""
    provider.claims = claims
    answer = await _with_code(client)
    assert (answer.status, answer.kind) == (401, "unauthorized")
    assert await changes_on_record(world) == []


async def test_a_code_works_once(client: Client) -> None:
    """A stolen code, used again, gives nothing."""
    assert (await _with_code(client)).status == 200
    again = await _with_code(client)
    assert (again.status, again.kind) == (401, "unauthorized")


async def test_keys_are_rotated(client: Client, provider: ScriptedProvider) -> None:
    """Keys are read once, and once more for a key that is new."""
    assert (await _with_code(client)).status == 200
    assert provider.jwks_read == 1
    provider.codes |= {"2"}
    assert (await _with_code(client, code="2")).status == 200
    assert provider.jwks_read == 1


async def test_a_local_account_is_not_taken_over(
    client: Client, world: World, provider: ScriptedProvider
) -> None:
    """Whoever is called at the provider as somebody here stays outside; so do groups."""
    await change(world, CreateUser(user_id="local", name="Anna"))
    assert (await _with_code(client)).status == 401
    provider.codes.add(CODE)
    provider.claims = {"preferred_username": "admin", "sub": "1"}
    assert (await _with_code(client)).status == 401
    await change(world, CreateGroup(group_id="admins", name="admins"))
    provider.codes.add(CODE)
    provider.claims = {"preferred_username": "carl", "sub": "2", "groups": ["admins", "x"]}
    assert (await _with_code(client)).status == 200
    found = [it for it in await changes_on_record(world) if isinstance(it, CreateGroup)]
    assert [it.name for it in found] == ["admins", "x"]


async def test_a_user_who_was_deactivated(
    client: Client, world: World, provider: ScriptedProvider
) -> None:
    """The provider lets them in, and Rung does not."""
    headers = bearer((await _with_code(client)).json["token"])
    (made,) = [it for it in await changes_on_record(world) if isinstance(it, CreateUser)]
    await change(world, SetUserActive(user_id=made.user_id, active=False))
    provider.codes.add(CODE)
    assert (await _with_code(client)).status == 401
    assert (await client.call("GET", "/status", headers=headers)).status == 401


@pytest.mark.parametrize(
    "uri",
    [
        "https://evil.example/",
        "http://evil.example/",
        "http://127.0.0.1.evil.example/",
        "http://127.0.0.1@evil.example/",
        "http://evil.example:80@127.0.0.1/",
        "javascript:alert(1)",
        "//evil.example",
        "http://127.0.0.1:9/?x=1",
        "http://127.0.0.1:9/#x",
        "http://[::1",
        "",
    ],
)
async def test_redirections_elsewhere(client: Client, uri: str) -> None:
    """A code is sent to the machine of the program that asks, and nowhere else."""
    body = {
        "redirect_uri": uri,
        "code_challenge": "c" * 43,
        "state": STATE,
        "nonce": NONCE,
    }
    assert (await client.call("POST", "/auth/loopback", json=body)).status == 400
    assert (await _with_code(client, redirect_uri=uri)).status == 400


async def _begin(client: Client, session: aiohttp.ClientSession, view: str = "/") -> str:
    path = f"{client.url}/api/v1/auth/start"
    async with session.get(path, params={"next": view}, allow_redirects=False) as answer:
        assert answer.status == 303
        return answer.headers["Location"]


async def _finish(client: Client, session: aiohttp.ClientSession, **query: str) -> Any:
    url = f"{client.url}/api/v1/auth/callback"
    async with session.get(url, params=query, allow_redirects=False) as answer:
        return answer


def _browser() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def test_the_page(client: Client, provider: ScriptedProvider) -> None:
    """A browser goes there and comes back with a session, to the view that it was at."""
    async with _browser() as session:
        query = provider.note(await _begin(client, session, "/x/k3f9x2ma/logs?rank=0"))
        assert query["redirect_uri"] == "http://127.0.0.1:8080/api/v1/auth/callback"
        assert query["code_challenge_method"] == "S256"
        answer = await _finish(client, session, code=CODE, state=query["state"])
        assert answer.headers["Location"] == "/#/x/k3f9x2ma/logs?rank=0"
        async with session.get(f"{client.url}/api/v1/status") as status:
            assert status.status == 200
        replayed = await _finish(client, session, code=CODE, state=query["state"])
        assert replayed.headers["Location"] == "/#/sign-in/expired"


async def test_states_that_are_not_this_browsers(
    client: Client, provider: ScriptedProvider
) -> None:
    """Another browser's code is not taken, whatever state comes with it."""
    async with _browser() as session, _browser() as other:
        query = provider.note(await _begin(client, session))
        for browser, state in ((other, query["state"]), (session, "x"), (session, "")):
            answer = await _finish(client, browser, code=CODE, state=state)
            assert answer.headers["Location"] == "/#/sign-in/expired"
            assert "rung_session" not in str(answer.headers.getall("Set-Cookie", []))
        assert provider.asked == []


@pytest.mark.parametrize(
    "query",
    [
        {"error": "access_denied"},
        {},
        {"code": "another"},
        {"code": CODE, "iss": "https://evil.example"},
        {"error": "x\r\nSet-Cookie: rung_session=x"},
    ],
    ids=str,
)
async def test_answers_that_let_nobody_in(
    client: Client, provider: ScriptedProvider, query: dict[str, str]
) -> None:
    """The page says that it did not work; nothing of the query is in the answer."""
    async with _browser() as session:
        asked = provider.note(await _begin(client, session))
        answer = await _finish(client, session, state=asked["state"], **query)
        assert answer.headers["Location"] == "/#/sign-in/refused"
        assert "rung_session" not in str(answer.headers.getall("Set-Cookie", []))


@pytest.mark.parametrize(
    "view", ["//evil.example", "https://evil.example", "/\r\nX: y", "x", '/<script>"', "/\\evil"]
)
async def test_views_elsewhere(client: Client, view: str) -> None:
    """Only views of the page are gone on to; and those are behind `/#`."""
    async with _browser() as session:
        url = f"{client.url}/api/v1/auth/start"
        async with session.get(url, params={"next": view}, allow_redirects=False) as answer:
            if answer.status == 303:
                assert view.startswith("//evil"), view
            else:
                assert answer.status == 400


async def test_a_device_code(client: Client, provider: ScriptedProvider) -> None:
    """202 until somebody has entered the code, a session then, and nothing once it expired."""
    code = (await client.call("POST", "/auth/device")).json
    assert (code["user_code"], code["interval_s"]) == ("ABCD-EFGH", 1)
    provider.device = ["authorization_pending", "slow_down"]
    provider.claims = {"nonce": ...}
    body = {"device_code": code["device_code"]}
    statuses = [
        (await client.call("POST", "/auth/device/token", json=body)).status for _ in range(3)
    ]
    assert statuses == [202, 202, 200]
    provider.device = ["expired_token"]
    assert (await client.call("POST", "/auth/device/token", json=body)).status == 401


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": 1},
    ],
    ids=str,
)
async def test_providers_that_are_not_the_one(
    client: Client, provider: ScriptedProvider, discovery: dict[str, Any]
) -> None:
    """What calls itself otherwise, or leads elsewhere, is not asked."""
    provider.discovery = discovery
    assert (await _with_code(client)).status == 503
    assert provider.asked == []


async def test_a_provider_that_fails(client: Client, provider: ScriptedProvider) -> None:
    """The page says so; local accounts and tokens go on."""
    provider.failing = True
    assert (await _with_code(client)).status == 503
    async with _browser() as session:
        query = provider.note(await _begin(client, session))
        answer = await _finish(client, session, code=CODE, state=query["state"])
        assert answer.headers["Location"] == "/#/sign-in/unavailable"
    assert (await client.call("GET", "/status")).status == 200


async def test_a_server_without_a_provider(world: World) -> None:
    """Its routes are not there."""
    world.settings = patient()
    async with world.gateway() as client:
        assert (await client.call("POST", "/auth/device")).status == 404
        assert (await client.get("/auth/methods"))["provider"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "http://id.example.org"},
        {"issuer": "https://id.example.org/?x=1"},
        {"client_id": ""},
        {"scopes": ("profile",)},
        {"clock_skew_s": -1},
    ],
    ids=str,
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    """The message names the field."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ProviderSettings(**{"issuer": "https://id.example.org", "client_id": "rung"} | wrong)


def test_cookies_of_https() -> None:
    """A public address of https makes them secure; a path or http elsewhere is refused."""
    assert IdentitySettings(public_url="https://rung.example.org").is_secure
    for url in ("http://rung.example.org", "https://rung.example.org/x", "rung.example.org"):
        with pytest.raises(ValueError, match="public_url"):
            IdentitySettings(public_url=url)
    with pytest.raises(ValueError, match="public_url"):
        IdentitySettings(provider=ProviderSettings(issuer="https://i.example", client_id="x"))


async def test_a_group_before_its_first_member(
    client: Client, world: World, provider: ScriptedProvider
) -> None:
    """It can be made for the provider, and whoever signs in with it is in it."""
    body = {"name": "research", "from_provider": True}
    made = await client.call("POST", "/groups", json=body)
    assert (made.status, made.json["issuer"]) == (201, provider.issuer)
    assert (await _with_code(client)).status == 200
    group = await client.get("/groups/research")
    assert [(it["name"], it["issuer"]) for it in group["members"]] == [("anna", provider.issuer)]
    world.settings = patient()
    async with world.gateway() as alone:
        refused = await alone.call("POST", "/groups", json=body | {"name": "others"})
    assert (refused.status, refused.json["errors"][0]["path"]) == (400, "from_provider")
    assert "--oidc-issuer" in refused.json["detail"]
