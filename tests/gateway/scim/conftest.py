"""A gateway with an identity provider that provisions users and groups."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from gateway.conftest import World, patient
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.identity.oidc.provider import ProviderSettings
from rung.gateway.identity.settings import IdentitySettings
from rung.ledger import MemoryLedger
from rung.runtime import host
from rung.storage import FolderStore
from support.gateway.client import TOKEN, Client
from support.gateway.people import bearer

ISSUER: Final = "https://id.example.org"
JSON: Final = "application/scim+json"


class Scim:
    """An identity provider that speaks SCIM with a gateway."""

    def __init__(self, session: aiohttp.ClientSession, url: str, secret: str) -> None:
        self.url: Final = f"{url}/scim/v2"
        self.secret: Final = secret
        self._session = session

    async def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Return status and body of an answer, which is SCIM's whatever comes."""
        sent = {"Content-Type": JSON, **bearer(self.secret), **headers}
        async with self._session.request(
            method, self.url + path, json=body, headers=sent
        ) as answer:
            if answer.status in {204, 304}:
                return answer.status, None
            assert answer.content_type == JSON, await answer.text()
            return answer.status, await answer.json(content_type=None)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Return a world beside which the directory is decided."""
    world = World(MemoryLedger(), FolderStore(tmp_path / "objects"))
    provider = ProviderSettings(issuer=ISSUER, client_id="rung")
    identity = IdentitySettings(public_url="https://rung.example.org", provider=provider)
    world.settings = patient(identity=identity)
    deciding = asyncio.create_task(host(world.ledger, DirectoryProcessor()))
    yield world
    deciding.cancel()
    await asyncio.gather(deciding, return_exceptions=True)


async def provisioner(client: Client, *scope: str) -> str:
    """Return the secret of a service account's token for provisioning."""
    made = await client.call("POST", "/service-accounts", json={"name": "okta"})
    assert made.status == 201, made
    given = {"role": "provisioner", "user": "okta"}
    assert (await client.call("POST", "/assignments", json=given)).status == 201
    wanted = {"name": "okta", "user": "okta", "scope": list(scope) or ["provision"]}
    issued = await client.call("POST", "/tokens", json=wanted)
    assert issued.status == 201, issued
    secret: str = issued.json["secret"]
    return secret


@pytest.fixture
async def scim(client: Client) -> AsyncIterator[Scim]:
    """Return the provider of the one gateway of the world."""
    secret = await provisioner(client)
    async with aiohttp.ClientSession() as session:
        yield Scim(session, client.url, secret)


@pytest.fixture
def root() -> dict[str, str]:
    """Return the headers of the administrator."""
    return bearer(TOKEN)
