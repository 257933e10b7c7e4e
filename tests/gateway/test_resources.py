"""Priority, weight, limit and pool of an experiment, changed while it runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.client import AsyncClient, Conflict
from rung.events import Payload
from rung.events.allocation import AgentJoined, AllocationGranted, Slot
from rung.events.experiment import KillRequested, ResourcesRequested
from rung.events.installation import PoolUpgraded
from rung.events.trial import RunRequested, RunWithdrawn
from rung.ledger import Ledger
from rung.runtime import host
from rung.runtime.levels import raise_level
from rung.runtime.relay import relay
from rung.scheduler.processor import Scheduler
from rung.scheduler.service import RELAY
from rung.searcher.service import RELAY as ENDS
from support.gateway.client import TOKEN, Answer, Client
from support.gateway.scenario import EXPERIMENT, submitted

PATH = f"/experiments/{EXPERIMENT}/resources"


def _joined(agent_id: str, pool: str, slots: int) -> AgentJoined:
    return AgentJoined(
        pool=pool,
        agent_id=agent_id,
        incarnation=1,
        hostname="host",
        slots=[Slot(id=n, kind="cpu", name=f"CPU slot {n}") for n in range(slots)],
    )


async def _known(world: World, *, slots: int = 1) -> None:
    """Have an experiment on record, and two pools of two slots."""
    fact = submitted()
    fact.config["resources"] = {"slots_per_trial": slots}
    await world.write(fact, _joined("a", "default", 2), _joined("b", "west", 2))


async def _set(client: Client, headers: dict[str, str] | None = None, **wanted: Any) -> Answer:
    return await client.call("POST", PATH, json=wanted, headers=dict(headers or {}))


async def _shown(client: Client) -> None:
    await until(lambda: client.call("GET", PATH), lambda answer: answer.status == 200)
    await until(lambda: client.get("/agents"), lambda found: len(found["items"]) == 2)


async def test_a_change_is_shown_and_on_record(world: World, client: Client) -> None:
    """At once, with its version; what is not given stays; filters find the pool."""
    await raise_level(world.ledger, 2)
    await _known(world)
    await _shown(client)
    before = await client.call("GET", PATH)
    assert before.headers["etag"] == '"0"'
    assert before.json == {
        "experiment_id": EXPERIMENT,
        "pool": "default",
        "priority": 42,
        "weight": 1.0,
        "max_slots": None,
        "max_slot_hours": None,
        "slots_per_trial": 1,
        "version": 0,
    }
    after = await _set(client, priority=7, weight=2.5, max_slots=4)
    assert (after.status, after.headers["etag"]) == (200, '"1"')
    assert after.json == before.json | {
        "priority": 7,
        "weight": 2.5,
        "max_slots": 4,
        "version": 1,
    }
    moved = await _set(client, pool="west", max_slots=0)
    assert moved.json == after.json | {"pool": "west", "max_slots": None, "version": 2}
    for name, count in (("west", 1), ("default", 0)):
        assert len((await client.get(f"/experiments?filter=pool:{name}"))["items"]) == count
    facts = [it for it in await world.all("experiments") if isinstance(it, ResourcesRequested)]
    assert facts == [
        ResourcesRequested(experiment_id=EXPERIMENT, priority=7, weight=2.5, max_slots=4),
        ResourcesRequested(experiment_id=EXPERIMENT, pool="west", max_slots=0),
    ]
    raised = [it.pool for it in await world.all("pools") if isinstance(it, PoolUpgraded)]
    assert raised == ["west"]


async def test_once_for_each_key(world: World, client: Client) -> None:
    """A repetition changes nothing; another request under the key is refused."""
    await _known(world)
    await _shown(client)
    headers = {"Idempotency-Key": "k"}
    first, again = [await _set(client, headers, priority=3) for _ in range(2)]
    other = await _set(client, headers, priority=4)
    assert first.json == again.json
    assert first.json["version"] == 1
    assert (other.status, other.kind) == (422, "idempotency-key-reused")


async def test_of_two_changes_of_one_version_one_is_made(world: World, client: Client) -> None:
    """At the same time, or one after the other."""
    await _known(world)
    await _shown(client)
    answers = await asyncio.gather(
        *(_set(client, {"If-Match": '"0"'}, priority=number) for number in (1, 2, 3))
    )
    assert sorted(answer.status for answer in answers) == [200, 412, 412]
    (made,) = [answer.json for answer in answers if answer.status == 200]
    late = await _set(client, {"If-Match": '"0"'}, priority=9)
    assert (late.status, late.kind) == (412, "changed")
    assert (await client.call("GET", PATH)).json == made
    wrong = await _set(client, {"If-Match": "x"}, priority=9)
    assert wrong.status in {400, 422}


@pytest.mark.parametrize(
    ("wanted", "status", "words"),
    [
        ({"priority": 0}, 422, "priority"),
        ({"priority": 100}, 422, "priority"),
        ({"weight": 0}, 422, "weight"),
        ({"max_slots": -1}, 422, "max_slots"),
        ({"pool": ""}, 422, "pool"),
        ({"slots": 4}, 422, "slots"),
        ({"max_slots": 1}, 422, "slots_per_trial (2)"),
        ({"pool": "east"}, 409, "pool east has no agent"),
        ({"pool": "small"}, 409, "pool small cannot give a trial 2 slots"),
    ],
)
async def test_what_cannot_be_is_refused(
    world: World, client: Client, wanted: dict[str, Any], status: int, words: str
) -> None:
    """With the field or the reason, and nothing is on record."""
    await _known(world, slots=2)
    await world.write(_joined("c", "small", 1))
    await until(lambda: client.get("/agents"), lambda found: len(found["items"]) == 3)
    await until(lambda: client.call("GET", PATH), lambda answer: answer.status == 200)
    answer = await _set(client, **wanted)
    assert (answer.status, words in answer.json["detail"]) == (status, True), answer.json
    assert not any(isinstance(it, ResourcesRequested) for it in await world.all("experiments"))


async def test_of_an_experiment_that_ends(world: World, client: Client) -> None:
    """It is refused; the searcher would ignore it."""
    await _known(world)
    await _shown(client)
    await world.write(KillRequested(experiment_id=EXPERIMENT))
    ending = await until(lambda: _set(client, priority=1), lambda answer: answer.status != 200)
    assert (ending.status, ending.kind) == (409, "ending")


async def test_a_queue_has_the_priority_at_once(world: World, client: Client) -> None:
    """What waits for slots is shown with it; through the searcher, the relay and the scheduler."""
    await world.write(_joined("a", "default", 1), _joined("b", "west", 2))
    await until(lambda: client.get("/agents"), lambda found: len(found["items"]) == 2)
    async with world.searcher(), _scheduling(world.ledger):
        answer = await client.submit(EXPERIMENT_FILE)
        name = answer.json["experiment_id"]
        path = f"/experiments/{name}/resources"
        await until(lambda: _priorities(client), lambda found: found == [42])
        await client.call("POST", path, json={"priority": 5})
        await until(lambda: _priorities(client), lambda found: found == [5])
        await client.call("POST", path, json={"pool": "west"})
        withdrawn = await until(
            lambda: world.all("searches"),
            lambda found: sum(isinstance(it, RunWithdrawn) for it in found) == 2,
        )
        assert {it.pool for it in withdrawn if isinstance(it, RunWithdrawn)} == {"default"}
        found = await until(lambda: world.all("placements"), _is_granted_in_west)
    (granted,) = [it for it in found if _is_granted_in_west([it])]
    requests = [it for it in await world.all("searches") if isinstance(it, RunRequested)]
    of_run = [it for it in requests if it.allocation_id == granted.allocation_id]
    assert [(it.pool, it.priority) for it in of_run] == [("west", 5)]


async def _priorities(client: Client) -> list[int]:
    return [it["priority"] for it in (await client.get("/queue"))["items"]]


def _is_granted_in_west(found: list[Payload]) -> bool:
    return any(isinstance(it, AllocationGranted) and it.pool == "west" for it in found)


@contextlib.asynccontextmanager
async def _scheduling(ledger: Ledger) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(each)
        for each in (host(ledger, Scheduler()), relay(ledger, RELAY), relay(ledger, ENDS))
    ]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_typed_client(world: World, client: Client) -> None:
    """It shows, changes, and raises where the version is another one."""
    await _known(world)
    await _shown(client)
    async with AsyncClient(client.url, TOKEN) as typed:
        found = await typed.set_resources(EXPERIMENT, priority=9, version=0)
        assert (found.priority, found.version) == (9, 1)
        with pytest.raises(Conflict):
            await typed.set_resources(EXPERIMENT, priority=8, version=0)
        assert await typed.resources(EXPERIMENT[:4]) == found
