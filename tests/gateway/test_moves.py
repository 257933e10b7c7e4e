"""Moving a trial: on record once, refused where it cannot come true."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.events import Payload
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AllocationDropped,
    DrainRequested,
    MoveRequested,
    Slot,
)
from rung.events.trial import RunRequested
from rung.runtime import host
from rung.scheduler.processor import Scheduler
from support.gateway.client import Client


async def _submitted(client: Client) -> str:
    answer = await client.submit(EXPERIMENT_FILE)
    return str(answer.json["experiment_id"])


def _joined(agent_id: str, *, pool: str = "default", slots: int = 1) -> AgentJoined:
    return AgentJoined(
        pool=pool,
        agent_id=agent_id,
        incarnation=1,
        hostname="host",
        slots=[Slot(id=n, kind="cpu", name=f"CPU slot {n}") for n in range(slots)],
    )


async def _placed(world: World, client: Client) -> str:
    """Have a trial run on agent a, among others; return its id."""
    async with world.searcher():
        trial_id = f"{await _submitted(client)}.0"
        found = await until(
            lambda: world.all("searches"),
            lambda events: any(isinstance(event, RunRequested) for event in events),
        )
    wanted = next(event for event in found if isinstance(event, RunRequested))
    asked = msgspec.structs.replace(wanted, pool="default", slots=2, priority=42, max_slots=None)
    agents: list[Payload] = [_joined("a", slots=2), _joined("b", slots=2), _joined("small")]
    agents += [_joined("far", pool="west", slots=2), _joined("gone", slots=2)]
    agents.append(AgentLeft(pool="default", agent_id="gone", incarnation=1))
    why = "the cloud takes it"
    agents.append(_joined("spot", slots=2))
    agents.append(DrainRequested(pool="default", agent_id="spot", incarnation=1, reason=why))
    async with _scheduler(world):
        await world.write(*agents, asked)
        await until(
            lambda: client.get("/agents"),
            lambda found: any(s["allocation_id"] for it in found["items"] for s in it["slots"]),
        )
    await until(
        lambda: client.call("GET", f"/trials/{trial_id}"),
        lambda answer: answer.status == 200 and answer.json["run"] == 1,
    )
    return trial_id


@contextlib.asynccontextmanager
async def _scheduler(world: World) -> AsyncIterator[None]:
    task = asyncio.create_task(host(world.ledger, Scheduler()))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_move_is_on_record(world: World, client: Client) -> None:
    """A move becomes its fact, for the scheduler of the trial's pool."""
    trial_id = await _placed(world, client)
    answer = await client.call("POST", f"/trials/{trial_id}/move", params={"to": "b"})
    anywhere = await client.call("POST", f"/trials/{trial_id}/move")

    assert (answer.status, answer.json) == (202, {"trial_id": trial_id, "to": "b"})
    assert (anywhere.status, anywhere.json) == (202, {"trial_id": trial_id, "to": None})
    experiment_id = trial_id.partition(".")[0]
    asked = [fact for fact in await world.all("pools") if isinstance(fact, MoveRequested)]
    assert asked == [
        MoveRequested(pool="default", experiment_id=experiment_id, trial_id=trial_id, to=to)
        for to in ("b", None)
    ]


async def test_same_key_moves_once(world: World, client: Client) -> None:
    """A move under a key is on record once; the key stands for that move."""
    trial_id = await _placed(world, client)
    path, headers = f"/trials/{trial_id}/move", {"Idempotency-Key": "k"}
    first = [await client.call("POST", path, headers=dict(headers)) for _ in range(2)]
    async with world.gateway() as restarted:
        again = await restarted.call("POST", path, headers=dict(headers))
        other = await restarted.call("POST", path, headers=dict(headers), params={"to": "b"})

    assert {answer.status for answer in (*first, again)} == {202}
    assert (other.status, other.kind) == (422, "idempotency-key-reused")
    assert sum(isinstance(fact, MoveRequested) for fact in await world.all("pools")) == 1


@pytest.mark.parametrize(
    ("to", "status", "kind", "words"),
    [
        ("nobody", 404, "not-found", "there is no agent 'nobody'; `rung status`"),
        ("far", 409, "other-pool", "agent far is in pool west; the trial is in default"),
        ("gone", 409, "agent-gone", "agent gone has left"),
        ("spot", 409, "agent-gone", "agent spot is being drained: the cloud takes it"),
        ("small", 409, "too-small", "agent small has 1 slot; trial {} needs 2"),
        ("a", 409, "there-already", "trial {} is on agent a"),
        ("", 400, "bad-parameter", "to: Expected `str` of length >= 1"),
    ],
)
async def test_agents_that_cannot_take_it(
    world: World, client: Client, *, to: str, status: int, kind: str, words: str
) -> None:
    """An agent that cannot take the trial is refused, with the reason."""
    trial_id = await _placed(world, client)
    answer = await client.call("POST", f"/trials/{trial_id}/move", params={"to": to})

    assert (answer.status, answer.kind) == (status, kind)
    assert words.format(trial_id) in answer.json["detail"]


async def test_trials_that_cannot_be_moved(world: World, client: Client) -> None:
    """A trial that is unknown, has no slots, or has ended is refused, with the reason."""
    trial_id = await _placed(world, client)
    experiment_id = trial_id.partition(".")[0]
    unknown = await client.call("POST", f"/trials/{experiment_id}.99/move")
    unplaced = await client.call("POST", f"/trials/{experiment_id}.1/move")
    async with world.searcher():
        await client.call("POST", f"/experiments/{experiment_id}/kill")
        names = [f"{experiment_id}.{index}" for index in range(2)]
        await world.write(
            *(
                AllocationDropped(
                    pool="default",
                    allocation_id=f"{name}.1",
                    experiment_id=experiment_id,
                    trial_id=name,
                    run=1,
                    reason="it was killed",
                )
                for name in names
            )
        )
        path = f"/trials/{experiment_id}.1"
        await until(lambda: client.get(path), lambda trial: trial["state"] == "canceled")
    ended = await client.call("POST", f"{path}/move")

    assert (unknown.status, unknown.kind) == (404, "not-found")
    assert (unplaced.status, unplaced.kind) == (409, "not-running")
    assert "neither trains nor waits" in unplaced.json["detail"]
    assert (ended.status, ended.kind) == (409, "ended")
