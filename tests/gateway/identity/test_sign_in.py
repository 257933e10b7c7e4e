"""Local accounts: signing in with a password, sessions, and what a request is answered as."""

import asyncio
from typing import Any

import pytest

from gateway.conftest import World
from rung.events.changes import CreateUser, SetUserActive
from rung.gateway.identity.secret import draw
from support.gateway.client import Client
from support.gateway.people import ANNA, PASSWORD, bearer, change, make_user, sign_in

pytestmark = pytest.mark.usefixtures("cheap_passwords")


async def test_a_password_opens(client: Client, world: World) -> None:
    """The session is answered as its user; the list of sessions shows it, not its secret."""
    await make_user(client, world)
    signed = await sign_in(client)
    assert signed["user"] == ANNA

    methods = await client.get("/auth/methods", headers=bearer(signed["token"]))
    assert (methods["user"], methods["passwords"]) == (ANNA, True)
    listed = await client.call("GET", "/tokens", headers=bearer(signed["token"]))
    (session,) = listed.json["items"]
    assert (session["kind"], session["current"]) == ("session", True)
    assert signed["token"].encode() not in listed.body


@pytest.mark.parametrize(
    ("name", "password"),
    [(ANNA, "another password"), ("nobody", PASSWORD), ("admin", PASSWORD), ("", ""), ("\0", "x")],
)
async def test_what_does_not_open(client: Client, world: World, name: str, password: str) -> None:
    """A wrong name and a wrong password are refused with the same words."""
    await make_user(client, world)
    answer = await client.call("POST", "/auth/password", json={"name": name, "password": password})
    assert (answer.status, answer.kind) == (401, "unauthorized")
    assert "the name or the password is wrong" in answer.json["detail"]


async def test_guessing_is_slowed_down(client: Client, world: World) -> None:
    """After some failures even the right password has to wait; others sign in meanwhile."""
    await make_user(client, world)
    await make_user(client, world, "ben")
    wrong = {"name": ANNA, "password": "wrong"}
    for _ in range(5):
        assert (await client.call("POST", "/auth/password", json=wrong)).status == 401
    # The first pause is a second, which a slow machine takes to check a password; each is doubled.
    for _ in range(8):
        answer = await client.call("POST", "/auth/password", json=wrong)
        if answer.status == 429:
            break
    right = {"name": ANNA.upper(), "password": PASSWORD}
    answer = await client.call("POST", "/auth/password", json=right)
    assert (answer.status, answer.kind) == (429, "too-many-attempts")
    assert int(answer.headers["retry-after"]) >= 1
    await sign_in(client, "ben")


async def test_guesses_at_one_time_are_counted(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many attempts that arrive together get no more tries than one after another."""
    monkeypatch.undo()  # they are at one time only while passwords take long to check
    await make_user(client, world)
    wrong = {"name": ANNA, "password": "wrong"}
    answers = await asyncio.gather(
        *(client.call("POST", "/auth/password", json=wrong) for _ in range(20))
    )
    assert sum(answer.status == 401 for answer in answers) <= 5


async def test_a_user_who_is_not_active(client: Client, world: World) -> None:
    """Neither the password opens any more nor a session of before."""
    user_id = await make_user(client, world)
    signed = await sign_in(client)
    await change(world, SetUserActive(user_id=user_id, active=False))
    answer = await client.call("GET", "/status", headers=bearer(signed["token"]))
    assert answer.status == 401
    body = {"name": ANNA, "password": PASSWORD}
    assert (await client.call("POST", "/auth/password", json=body)).status == 401


async def test_signing_out(client: Client, world: World) -> None:
    """The session opens nothing any more; the token of the server cannot be signed out."""
    await make_user(client, world)
    headers = bearer((await sign_in(client))["token"])
    assert (await client.call("GET", "/status", headers=headers)).status == 200
    assert (await client.call("POST", "/auth/sign-out", headers=headers)).status == 200
    assert (await client.call("GET", "/status", headers=headers)).status == 401
    assert (await client.call("POST", "/auth/sign-out")).status == 409


async def _cookie(client: Client, **headers: str) -> Any:
    body = {"name": ANNA, "password": PASSWORD, "cookie": True}
    return await client.call(
        "POST",
        "/auth/password",
        json=body,
        headers={"Sec-Fetch-Site": "same-origin", "Authorization": ""} | headers,
    )


async def test_the_cookie_of_the_page(client: Client, world: World) -> None:
    """Scripts cannot read it, other sites cannot send it, and it is the session."""
    await make_user(client, world)
    answer = await _cookie(client)
    assert answer.json["token"] is None
    text = answer.headers["set-cookie"]
    assert text.startswith("rung_session=rung_")
    assert {"HttpOnly", "Path=/", "SameSite=Lax", "Max-Age=43200"} <= set(text.split("; "))
    assert "Secure" not in text
    cookie = text.partition(";")[0]
    assert (await _as_page(client, "GET", "/status", cookie)).status == 200


async def _as_page(client: Client, method: str, path: str, cookie: str, **headers: str) -> Any:
    url = f"{client.url}/api/v1{path}"
    sent = {"Cookie": cookie} | headers
    async with client.session.request(method, url, headers=sent) as answer:
        await answer.read()
        return answer


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://"},
    ],
    ids=str,
)
async def test_another_site_changes_nothing(
    client: Client, world: World, headers: dict[str, str]
) -> None:
    """What another site has the browser send is refused, signed in or not."""
    await make_user(client, world)
    cookie = (await _cookie(client)).headers["set-cookie"].partition(";")[0]
    assert (await _as_page(client, "POST", "/auth/sign-out", cookie, **headers)).status == 403
    assert (await _as_page(client, "GET", "/status", cookie, **headers)).status == 200
    body = {"name": ANNA, "password": PASSWORD, "cookie": True}
    url = f"{client.url}/api/v1/auth/password"
    async with client.session.post(url, json=body, headers=headers) as answer:
        assert answer.status == 403
        assert "Set-Cookie" not in answer.headers


async def test_the_page_signs_out(client: Client, world: World) -> None:
    """From this server's own page it may; the browser forgets the cookie."""
    await make_user(client, world)
    cookie = (await _cookie(client)).headers["set-cookie"].partition(";")[0]
    answer = await _as_page(client, "POST", "/auth/sign-out", cookie, Origin=client.url)
    assert answer.status == 200
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert (await _as_page(client, "GET", "/status", cookie)).status == 401


async def test_a_form_of_another_site(client: Client, world: World) -> None:
    """A body that a form can send is not read."""
    answer = await client.call("POST", "/auth/password", data={"name": ANNA, "password": "x"})
    assert (answer.status, answer.kind) == (415, "unsupported-media-type")


@pytest.mark.parametrize(
    "text",
    ["rung_", draw(), draw()[:-1], f"{draw()} ", "Bearer", "\xff", "a" * 5000],
    ids=["prefix", "unknown", "cut", "spaced", "scheme", "latin", "long"],
)
async def test_secrets_that_are_none(client: Client, world: World, text: str) -> None:
    """Whatever is sent as a token, it is refused in the one way."""
    answer = await client.call("GET", "/status", headers=bearer(text))
    assert (answer.status, answer.kind) == (401, "unauthorized")


async def test_another_password(client: Client, world: World) -> None:
    """One's own needs the present one; then all sessions end, and the new one opens."""
    await make_user(client, world)
    headers = bearer((await sign_in(client))["token"])
    path, new = f"/users/{ANNA}/password", "another long password"

    async def put(**body: str) -> Any:
        return await client.call("POST", path, json=body, headers=headers)

    assert (await put(password=new)).status == 403
    assert (await put(password=new, current="wrong")).status == 403
    assert (await put(password="short", current=PASSWORD)).status == 422  # noqa: S106 - refused
    assert (await put(password=new, current=PASSWORD)).status == 200
    assert (await client.call("GET", "/status", headers=headers)).status == 401
    assert (await sign_in(client, password=new))["user"] == ANNA


async def test_nobody_sets_the_password_of_others(client: Client, world: World) -> None:
    """Only who may manage users does; a service account has none."""
    await make_user(client, world)
    await make_user(client, world, "ben")
    headers = bearer((await sign_in(client))["token"])
    body = {"password": "another long password"}
    answer = await client.call("POST", "/users/ben/password", json=body, headers=headers)
    assert (answer.status, answer.kind) == (403, "forbidden")
    await change(world, CreateUser(user_id="robot", name="robot", kind="service"))
    answer = await client.call("POST", "/users/robot/password", json=body)
    assert answer.status == 422
    assert (await client.call("POST", "/users/nobody/password", json=body)).status == 404
