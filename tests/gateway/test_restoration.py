"""Deletions that are taken back: hidden at once, all there again, gone when the time is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from msgspec import structs

from gateway.conftest import World, until
from rung.checkpoint_gc.service import components
from rung.checkpoint_gc.settings import Settings
from rung.events import topic
from rung.events.checkpoint import CheckpointStored
from rung.events.experiment import DeletionDue, ExperimentRetired
from rung.runtime.service import serve
from support.gateway.client import Client
from support.gateway.scenario import EXPERIMENT, play

_PATH = f"/experiments/{EXPERIMENT}"
_DAY_S = 86_400.0


class _Clock:
    """The time of checkpoint-gc, in milliseconds since 1970."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


@contextlib.asynccontextmanager
async def _collecting(world: World, clock: _Clock) -> AsyncIterator[None]:
    """Run checkpoint-gc by a clock of ours."""
    settings = Settings(due_every=0.01)
    task = asyncio.create_task(serve(world.ledger, components(world.store, settings, clock=clock)))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _ended(world: World) -> None:
    """Play a search to its end, with the files of its checkpoints."""
    await world.play(play(1))
    for it in await world.all(topic.EXPERIMENTS):
        if isinstance(it, CheckpointStored):
            world.store.put_bytes(f"checkpoints/{EXPERIMENT}/{it.checkpoint_id}/model.pt", b"x")
    world.settings = structs.replace(world.settings, deletion_delay=_DAY_S)


async def _kind(client: Client) -> str:
    answer = await client.call("GET", _PATH)
    return "" if answer.status == 200 else str(answer.kind)


async def _state(client: Client) -> dict[str, Any]:
    """Return all that is shown of the experiment, and what the status counts."""
    status = await client.get("/status")
    counted = ("experiments", "checkpoint_count", "checkpoint_bytes")
    return {
        "shown": await client.get(_PATH),
        "listed": await client.get("/experiments"),
        "checkpoints": await client.get(f"{_PATH}/checkpoints"),
        "status": {name: status[name] for name in counted},
        "trial": await client.get(f"/trials/{EXPERIMENT}.0"),
    }


def _named(state: dict[str, Any]) -> str:
    """Return the path of the experiment by its name."""
    return f"/experiments/{quote(state['shown']['name'], safe='')}"


async def test_hidden_restored_and_gone(world: World) -> None:
    """It is hidden at once with all that it has, is as it was when restored, and goes in time."""
    await _ended(world)
    clock = _Clock()
    async with _collecting(world, clock), world.gateway() as client:
        before = await _state(client)
        checkpoint = before["checkpoints"]["items"][0]["id"]
        files = sorted(info.name for info in world.store.list("checkpoints/"))
        early = await client.call("POST", f"{_PATH}/restore")
        dry = await client.call("POST", f"{_PATH}/delete", params={"dry_run": "true"})
        deleted = await client.call("POST", f"{_PATH}/delete")
        await until(lambda: _kind(client), lambda kind: kind == "restorable")

        again = await client.call("POST", f"{_PATH}/delete")
        listed = await client.get("/experiments")
        hidden = await client.get("/experiments?deleted=true&state=completed")
        status = await client.get("/status")
        lookups = [
            await client.call("GET", path)
            for path in (
                f"/checkpoints/{checkpoint}",
                f"/experiments/{EXPERIMENT[:4]}",
                _named(before),
            )
        ]
        restored = await client.call("POST", f"{_named(before)}/restore")
        await until(lambda: _kind(client), lambda kind: not kind)
        after = await _state(client)

        batch = {"action": "delete", "ids": [EXPERIMENT]}
        bulk = await client.call("POST", "/experiments:batch", json=batch)
        await until(lambda: _kind(client), lambda kind: kind == "restorable")
        back = {"action": "restore", "filter": "state:completed"}
        bulk_back = await client.call("POST", "/experiments:batch", json=back)
        await until(lambda: _kind(client), lambda kind: not kind)

        await client.call("POST", f"{_PATH}/delete")
        await until(lambda: _kind(client), lambda kind: kind == "restorable")
        clock.ms = 1 << 50
        await until(lambda: _kind(client), lambda kind: kind == "deleted")
        late = await client.call("POST", f"{_PATH}/restore")
        gone = await client.get("/experiments?deleted=true")

    assert before == after
    assert files
    assert (early.status, early.kind) == (409, "not-deleted")
    assert dry.json["restorable_until"] is not None
    assert deleted.json["restorable_until"] == hidden["items"][0]["restorable_until"]
    assert (again.status, again.kind) == (410, "restorable")
    assert f"rung restore {EXPERIMENT}" in again.json["detail"]
    assert (listed["items"], [it["id"] for it in hidden["items"]]) == ([], [EXPERIMENT])
    assert status["experiments"] == {}
    assert status["checkpoint_bytes"] == before["status"]["checkpoint_bytes"]
    assert [it.status for it in lookups] == [404, 404, 404]
    assert restored.json == {"experiment_id": EXPERIMENT, "requested": "restore"}
    assert bulk.json["items"][0]["restorable_until"] is not None
    assert (bulk_back.json["done"], bulk_back.json["refused"]) == (1, 0)
    assert (late.status, late.kind) == (410, "deleted")
    assert gone["items"] == []
    assert list(world.store.list("checkpoints/")) == []
    due = [it for it in await world.all(topic.EXPERIMENTS) if isinstance(it, DeletionDue)]
    assert len(due) == 1


async def test_at_once(world: World) -> None:
    """`now` leaves no way back, also for what is hidden already."""
    await _ended(world)
    async with _collecting(world, _Clock()), world.gateway() as client:
        await client.call("POST", f"{_PATH}/delete")
        await until(lambda: _kind(client), lambda kind: kind == "restorable")
        answer = await client.call("POST", f"{_PATH}/delete", params={"now": "true"})
        await until(lambda: _kind(client), lambda kind: kind == "deleted")
        hidden = await client.get("/experiments?deleted=true")

    assert (answer.status, answer.json["restorable_until"]) == (202, None)
    assert hidden["items"] == []
    retired = await world.all(topic.RETIREMENTS)
    assert sum(isinstance(it, ExperimentRetired) for it in retired) == 1


async def test_a_rebuilt_gateway_knows_the_same(world: World) -> None:
    """What is hidden, and until when, follows from the ledger."""
    await _ended(world)
    async with _collecting(world, _Clock()):
        async with world.gateway() as client:
            await client.call("POST", f"{_PATH}/delete")
            await until(lambda: _kind(client), lambda kind: kind == "restorable")
            first = await client.get("/experiments?deleted=true")
        world.folder = None
        async with world.gateway() as client:
            await until(lambda: _kind(client), lambda kind: kind == "restorable")
            assert await client.get("/experiments?deleted=true") == first
