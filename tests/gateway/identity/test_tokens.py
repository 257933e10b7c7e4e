"""Tokens for programs: scope, workspace, expiry, use, rotation, revocation; on every replica."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from gateway.conftest import World
from rung.events.changes import (
    AssignRole,
    ChangeMembers,
    CreateGroup,
    CreateUser,
    IssueToken,
    NoteTokenUse,
    RemoveAssignment,
    RevokeToken,
    SetUserActive,
)
from rung.gateway.identity.secret import digest_of, draw, is_secret
from support.gateway.client import TOKEN, Client
from support.gateway.people import (
    ANNA,
    bearer,
    change,
    changes_on_record,
    make_user,
    sign_in,
)
from support.gateway.scenario import EXPERIMENT, History, submitted

pytestmark = pytest.mark.usefixtures("cheap_passwords")
LOSS_S = 5.0
"""Within which who loses access has none left."""


async def _create(client: Client, headers: dict[str, str], **wanted: Any) -> Any:
    answer = await client.call(
        "POST", "/tokens", json={"name": "ci"} | wanted, headers=dict(headers)
    )
    assert answer.status == 201, answer
    return answer.json


async def _shown(client: Client, path: str) -> None:
    """Wait until a replica has folded what a path is about."""
    async with asyncio.timeout(20):
        while (await client.call("GET", path)).status == 404:  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.01)


async def test_a_token_of_ones_own(client: Client, world: World) -> None:
    """It opens as its user does; on record is the digest alone."""
    await make_user(client, world)
    session = bearer((await sign_in(client))["token"])
    issued = await _create(client, session, expires_days=7)
    assert is_secret(issued["secret"])
    assert issued["token"]["expires_at"] is not None
    methods = await client.get("/auth/methods", headers=bearer(issued["secret"]))
    assert methods["user"] == ANNA
    (digest,) = [
        it.digest
        for it in await changes_on_record(world)
        if isinstance(it, IssueToken) and it.name == "ci"
    ]
    assert digest == digest_of(issued["secret"])
    listed = await client.call("GET", "/tokens", headers=dict(session))
    assert issued["secret"].encode() not in listed.body


async def test_the_log_is_beyond_a_limited_token(client: Client, world: World) -> None:
    """Its user has acted in other workspaces, too; one with `read` of all lists what was done."""
    await make_user(client, world)
    await client.call(
        "POST", "/assignments", json={"role": "editor", "user": "anna", "workspace": "default"}
    )
    session = bearer((await sign_in(client))["token"])
    for wanted, status in (
        ({"scope": ["model.view"]}, 403),
        ({"workspace": "default"}, 403),
        ({"scope": ["read"]}, 200),
        ({}, 200),
    ):
        issued = await _create(client, session, **wanted)
        for path in ("/log", "/log?who=anna"):
            answer = await client.call("GET", path, headers=bearer(issued["secret"]))
            assert answer.status == status, answer
            assert status == 200 or "limited" in answer.json["detail"]


async def test_names_for_scopes(client: Client, world: World) -> None:
    """`people` and `read` stand for permissions; others are refused, and it says what there is."""
    await make_user(client, world)
    session = bearer((await sign_in(client))["token"])
    issued = await _create(client, session, scope=["people"])
    assert issued["token"]["scope"] == ["group.edit", "group.view", "user.edit", "user.view"]
    wrong = await client.call(
        "POST", "/tokens", json={"name": "x", "scope": ["nothing.do"]}, headers=dict(session)
    )
    assert (wrong.status, wrong.json["errors"][0]["path"]) == (422, "scope")


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({"name": ""}, 422),
        ({"name": "x", "expires_days": 0}, 422),
        ({"name": "x", "scope": []}, 422),
        ({"name": "x", "workspace": "nowhere"}, 404),
        ({"name": "x", "user": "nobody"}, 404),
        ({"name": "x", "user": "admin"}, 403),
        ({"name": "x", "more": 1}, 422),
    ],
    ids=str,
)
async def test_tokens_that_cannot_be(
    client: Client, world: World, wanted: Any, status: int
) -> None:
    """The field is named; nobody gets a token of somebody else."""
    await make_user(client, world)
    session = bearer((await sign_in(client))["token"])
    answer = await client.call("POST", "/tokens", json=wanted, headers=session)
    assert answer.status == status


async def test_a_token_makes_no_more_than_it_is(client: Client, world: World) -> None:
    """One with a scope makes none; of others one sees and revokes nothing."""
    await make_user(client, world)
    await make_user(client, world, "ben")
    session = bearer((await sign_in(client))["token"])
    limited = bearer((await _create(client, session, scope=["read"]))["secret"])
    answer = await client.call("POST", "/tokens", json={"name": "more"}, headers=limited)
    assert answer.status == 403
    other = bearer((await sign_in(client, "ben"))["token"])
    of_ben = (await _create(client, other, name="his"))["token"]["id"]
    for path in (f"/tokens/{of_ben}/revoke", f"/tokens/{of_ben}/rotate"):
        answer = await client.call("POST", path, json={}, headers=dict(session))
        assert answer.status == 404
    answer = await client.call("GET", "/tokens?user=ben", headers=dict(session))
    assert answer.status == 403


async def test_a_service_account(client: Client, world: World) -> None:
    """Its tokens are made by who manages it, and not by itself."""
    await change(world, CreateUser(user_id="robot", name="robot", kind="service"))
    await _shown(client, "/tokens?user=robot")
    issued = await _create(client, {}, user="robot")
    assert (issued["token"]["user"], issued["token"]["kind"]) == ("robot", "service")
    robot = bearer(issued["secret"])
    assert (await client.get("/auth/methods", headers=dict(robot)))["user"] == "robot"


async def test_rotation_with_overlap(client: Client, world: World) -> None:
    """Both secrets open for a while, and the one before can be revoked early."""
    await make_user(client, world)
    session = bearer((await sign_in(client))["token"])
    first = (await _create(client, session))["secret"]
    rotated = await client.call(
        "POST", "/tokens/ci/rotate", json={"overlap_s": 3600}, headers=dict(session)
    )
    assert rotated.json["before_until"] is not None
    second = rotated.json["secret"]
    for each in (first, second):
        assert (await client.call("GET", "/status", headers=bearer(each))).status == 200
    name = "ci (before rotation)"
    revoked = await client.call("POST", f"/tokens/{name}/revoke", headers=dict(session))
    assert revoked.status == 200
    assert (await client.call("GET", "/status", headers=bearer(first))).status == 401
    assert (await client.call("GET", "/status", headers=bearer(second))).status == 200


async def test_rotation_at_once(client: Client, world: World) -> None:
    """Without an overlap the secret before opens nothing any more."""
    await make_user(client, world)
    session = bearer((await sign_in(client))["token"])
    first = (await _create(client, session))["secret"]
    await client.call("POST", "/tokens/ci/rotate", json={}, headers=dict(session))
    assert (await client.call("GET", "/status", headers=bearer(first))).status == 401
    current = (await client.get("/tokens", headers=dict(session)))["items"]
    own = next(it["id"] for it in current if it["kind"] == "session")
    answer = await client.call("POST", f"/tokens/{own}/rotate", json={}, headers=dict(session))
    assert (answer.status, answer.kind) == (409, "a-session")


async def test_uses_are_noted_once_an_hour(client: Client, world: World) -> None:
    """However often a token is used, one use is on record."""
    await make_user(client, world)
    session = bearer((await sign_in(client))["token"])
    secret = (await _create(client, session))["secret"]
    for _ in range(20):
        assert (await client.call("GET", "/status", headers=bearer(secret))).status == 200
    async with asyncio.timeout(20):
        while True:
            listed = (await client.get("/tokens", headers=dict(session)))["items"]
            if all(it["used_at"] for it in listed):
                break
            await asyncio.sleep(0.01)
    uses = [it for it in await changes_on_record(world) if isinstance(it, NoteTokenUse)]
    assert len(uses) == len({it.token_id for it in uses}) == 2


async def test_acting_for_somebody(client: Client, world: World) -> None:
    """An administrator with a token of their own may; nobody else."""
    await make_user(client, world)
    await make_user(client, world, "root2")
    await change(world, AssignRole(assignment_id="more", role="cluster-admin", user_id="root2"))
    boss = bearer((await sign_in(client, "root2"))["token"])
    named = boss | {"Rung-On-Behalf-Of": ANNA}
    assert (await client.call("GET", "/status", headers=dict(named))).status == 200
    nobody = boss | {"Rung-On-Behalf-Of": "nobody"}
    assert (await client.call("GET", "/status", headers=nobody)).status == 403
    anna = bearer((await sign_in(client))["token"]) | {"Rung-On-Behalf-Of": "root2"}
    assert (await client.call("GET", "/status", headers=anna)).status == 403


class _Stream:
    """An open stream of server-sent events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def ended_within(self, seconds: float) -> bool:
        """Return whether the server ends it."""
        try:
            async with asyncio.timeout(seconds):
                while await self._answer.content.read(65536):
                    pass
        except aiohttp.ClientError:
            return True
        except TimeoutError:
            return False
        return True


async def _open(client: Client, secret: str) -> _Stream:
    answer = await client.session.get(
        f"{client.url}/api/v1/experiments/{EXPERIMENT}/events", headers=bearer(secret)
    )
    assert answer.status == 200
    await answer.content.readline()
    return _Stream(answer)


async def _experiment(world: World) -> None:
    history = History()
    history.write(submitted(max_trials=1), origin="client/x")
    await world.play(history)


@pytest.mark.parametrize("how", ["token", "user", "group", "role", "expiry"])
async def test_open_streams_end_on_every_replica(world: World, how: str) -> None:
    """A revoked token, user, group or role ends the stream within 5 s, on both gateways.

    The one who loses nothing keeps theirs.
    """
    async with world.gateway() as client, world.gateway() as other:
        await _experiment(world)
        user_id = await make_user(client, world)
        await change(world, CreateGroup(group_id="team", name="team"))
        await change(world, ChangeMembers(group_id="team", add=[user_id]))
        await change(world, AssignRole(assignment_id="one", role="viewer", group_id="team"))
        ben = await make_user(client, world, "ben")
        await change(world, AssignRole(assignment_id="two", role="viewer", user_id=ben))
        secret, kept = [(await sign_in(client, name))["token"] for name in (ANNA, "ben")]
        if how == "expiry":
            secret = await _expiring(world, user_id)
        streams = [await _open(each, secret) for each in (client, other)]
        stays = [await _open(each, kept) for each in (client, other)]
        token_id = next(
            it["id"]
            for it in (await client.get("/tokens", headers=bearer(secret)))["items"]
            if it["current"]
        )
        began = time.monotonic()
        if how == "token":
            await change(world, RevokeToken(token_id=token_id))
        elif how == "user":
            await change(world, SetUserActive(user_id=user_id, active=False))
        elif how == "group":
            await change(world, ChangeMembers(group_id="team", remove=[user_id]))
        elif how == "role":
            await change(world, RemoveAssignment(assignment_id="one"))
        ended = await asyncio.gather(*(each.ended_within(LOSS_S) for each in streams))
        assert all(ended)
        assert time.monotonic() - began < LOSS_S
        if how in {"token", "user", "expiry"}:
            for each in (client, other):
                answer = await each.call("GET", "/status", headers=bearer(secret))
                assert answer.status == 401
        assert not any(await asyncio.gather(*(each.ended_within(0.7) for each in stays)))


async def _expiring(world: World, user_id: str) -> str:
    secret = draw()
    expires_ms = int(time.time() * 1000) + 2_000
    await change(
        world,
        IssueToken(
            token_id="soon",  # noqa: S106 - an id
            user_id=user_id,
            digest=digest_of(secret),
            expires_ms=expires_ms,
        ),
    )
    return secret


async def test_a_replica_that_lags(world: World) -> None:
    """A session that one replica gave opens at the other at once."""
    async with world.gateway() as client, world.gateway() as other:
        await make_user(client, world)
        for _ in range(5):
            secret = (await sign_in(client))["token"]
            assert (await other.call("GET", "/status", headers=bearer(secret))).status == 200


async def test_the_token_of_the_server_needs_no_directory(client: Client, world: World) -> None:
    """It is the user `admin`."""
    assert (await client.get("/auth/methods"))["user"] == "admin"
    assert TOKEN
