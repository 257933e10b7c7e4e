"""`Rung-After`: a client reads what it wrote, whichever replica it asks."""

import asyncio
import base64
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.gateway.settings import Settings
from rung.ledger import Ledger, MemoryLedger, Record
from rung.storage import FolderStore


class _Late:
    """A ledger as a replica sees it that lags behind."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.let = asyncio.Event()
        self.let.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def read(self, *place: Any) -> list[Record]:
        """Read once it is let."""
        await self.let.wait()
        return await self._ledger.read(*place)


async def test_a_replica_that_is_behind_is_waited_for(world: World) -> None:
    """It answers what the other one wrote, or that it cannot yet."""
    late = _Late(world.ledger)
    other = World(late, world.store)
    other.settings = Settings(seen_timeout=0.2)
    async with world.gateway() as first, other.gateway() as second:
        late.let.clear()
        submitted = await first.submit(EXPERIMENT_FILE)
        path = f"/experiments/{submitted.json['experiment_id']}"
        headers = {"Rung-After": submitted.headers["rung-after"]}
        without = await second.call("GET", path)
        unready = await second.call("GET", path, headers=dict(headers))
        late.let.set()
        shown = await second.call("GET", path, headers=dict(headers))
        paused = await second.call("POST", f"{path}/pause", headers=dict(headers))
        again = await first.call("GET", path, headers={"Rung-After": paused.headers["rung-after"]})

    assert without.status == 404
    assert (unready.status, unready.kind) == (503, "unavailable")
    assert unready.headers["retry-after"] == "2"
    assert [shown.status, paused.status, again.status] == [200, 202, 200]
    assert "rung-after" not in shown.headers


async def test_a_token_stands_for_all_that_a_client_wrote(world: World) -> None:
    """Where it wrote last is not all: what it wrote before lies in another partition."""
    async with world.gateway() as client:
        token: dict[str, str] = {}
        for _ in range(12):
            form = aiohttp.FormData()
            form.add_field("config", EXPERIMENT_FILE, filename="experiment.yaml")
            answer = await client.call("POST", "/experiments", data=form, headers={**token})
            assert answer.status == 201
            token = {"Rung-After": answer.headers["rung-after"]}
    text = token["Rung-After"]
    _, rows = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))

    assert len(rows) > 1


@pytest.mark.parametrize("token", ["x", "W10", "ü", "e30"])
async def test_what_is_no_token_is_refused(world: World, token: str) -> None:
    """400, naming the header."""
    async with world.gateway() as client:
        answer = await client.call("GET", "/status", headers={"Rung-After": token})

    assert (answer.status, answer.kind) == (400, "bad-parameter")
    assert "Rung-After" in answer.json["detail"]


async def test_another_ledgers_token_is_passed_over(world: World, tmp_path: Any) -> None:
    """A data folder that was made anew does not keep its clients waiting."""
    other = World(MemoryLedger(), FolderStore(tmp_path / "other"))
    async with world.gateway() as client, other.gateway() as elsewhere:
        submitted = await client.submit(EXPERIMENT_FILE)
        headers = {"Rung-After": submitted.headers["rung-after"]}
        answer = await elsewhere.call("GET", "/status", headers=headers)

    assert answer.status == 200


async def test_a_server_that_catches_up_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers from what it has, and does not say that what it lacks is not there."""
    world.settings = Settings(start_timeout=0.05)
    async with world.gateway() as client:
        name = (await client.submit(EXPERIMENT_FILE)).json["experiment_id"]
    late = _Late(world.ledger)
    late.let.clear()
    other = World(late, world.store)
    other.settings = world.settings
    async with other.gateway() as client:
        status = await client.get("/status")
        missing = await client.call("GET", f"/experiments/{name}")
        late.let.set()
        await until(
            lambda: client.call("GET", f"/experiments/{name}"), lambda it: it.status == 200
        )

    assert any("catching up: 0 of 1 record" in problem for problem in status["problems"])
    assert missing.status == 503
    assert "catching up" in missing.json["detail"]
