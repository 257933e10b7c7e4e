"""People of an installation, for tests: made as the gateway would, signed in over HTTP."""

import asyncio
import secrets
import time
from typing import Any, Final

from gateway.conftest import World
from rung.events import topic
from rung.events.changes import Change, CreateUser
from rung.events.directory import SYSTEM, ChangeRequested, DirectoryChanged, DirectoryDecision
from support.gateway.client import Client

ANNA: Final = "anna"
PASSWORD: Final = "a password of the tests"  # noqa: S105 - of users that live for one test


def bearer(secret: str) -> dict[str, str]:
    """Return the headers of a request with a token."""
    return {"Authorization": f"Bearer {secret}"}


async def change(world: World, wanted: Change) -> None:
    """Have the directory make a change, asked for by the gateway itself, and wait for it."""
    request_id = secrets.token_hex(8)
    await world.write(
        ChangeRequested(
            request_id=request_id, by=SYSTEM, at_ms=time.time_ns() // 10**6, change=wanted
        )
    )
    async with asyncio.timeout(20):
        while True:
            for it in await world.all(topic.DIRECTORY):
                assert isinstance(it, DirectoryDecision)
                if it.request_id == request_id:
                    assert isinstance(it, DirectoryChanged), it
                    return
            await asyncio.sleep(0.01)


async def changes_on_record(world: World) -> list[Change]:
    """Return the changes of the directory."""
    decisions = await world.all(topic.DIRECTORY)
    return [it.change for it in decisions if isinstance(it, DirectoryChanged)]


async def make_user(client: Client, world: World, name: str = ANNA) -> str:
    """Make a local account with a password, and return its id."""
    await change(world, CreateUser(user_id=name, name=name))
    async with asyncio.timeout(20):
        while True:
            path, body = f"/users/{name}/password", {"password": PASSWORD}
            answer = await client.call("POST", path, json=body)
            if answer.status != 404:  # this replica has folded the user
                break
            await asyncio.sleep(0.01)
    assert answer.status == 200, answer
    return name


async def sign_in(client: Client, name: str = ANNA, password: str = PASSWORD) -> Any:
    """Sign in with a password, and return the answer."""
    body = {"name": name, "password": password}
    answer = await client.call("POST", "/auth/password", json=body)
    assert answer.status == 200, answer
    return answer.json
