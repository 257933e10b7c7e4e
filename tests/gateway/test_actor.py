"""The name behind every act: each fact that a request writes carries who asked."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.conftest import EXPERIMENT_FILE, World, archive, until
from rung import gateway
from rung.events import Event, changes, decode, topic
from rung.events.allocation import AgentJoined, Slot
from rung.events.deadletter import MessageRejected
from rung.gateway import context
from rung.gateway.directory.directory import Directory
from rung.gateway.identity import authentication
from rung.gateway.identity.principal import ADMIN
from rung.runtime import host
from rung.runtime.relay import relay
from rung.scheduler.processor import Scheduler
from rung.scheduler.service import RELAY
from support.gateway.client import Client
from support.gateway.directory import fold_change

_GATEWAY = "/rung/gateway"


async def _events(world: World, *topics: str) -> list[Event]:
    return [
        decode(record.value)
        for name in topics
        for partition in range(world.ledger.partitions(name))
        for record in await world.ledger.read(name, partition, 0, 10_000)
    ]


@pytest.fixture
def anna(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a service account ask, for anna; both are administrators."""
    directory = Directory(world.ledger)
    for user_id, name in (("u7robot", "robot"), ("u1anna", "anna")):
        fold_change(
            directory,
            changes.CreateUser(user_id=user_id, name=name),
            changes.AssignRole(assignment_id=name, role="cluster-admin", user_id=user_id),
        )
    monkeypatch.setattr(context, "Directory", lambda _ledger: directory)
    robot = msgspec.structs.replace(ADMIN, user_id="u7robot", name="robot", on_behalf_of="u1anna")
    monkeypatch.setattr(authentication, "ADMIN", robot)
    return iter(())


def test_facts_are_made_in_one_place() -> None:
    """In `requests/writes.py` alone, but for what nobody asks for: counts of slot time."""
    folder = Path(gateway.__file__).parent
    stamping = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if re.search(r"writer\.(stamp|write)\(|\bfact\(", path.read_text())
    }

    assert stamping == {"requests/writes.py", "limit_watch.py"}


async def _write_everything(world: World, client: Client) -> None:
    code = archive(**{"train.py": b"pass\n"})
    made = (await client.submit(EXPERIMENT_FILE, code=code)).json["experiment_id"]
    await world.write(
        AgentJoined(
            pool="default",
            agent_id="a",
            incarnation=1,
            hostname="h",
            slots=[Slot(id=0, kind="cpu", name="CPU")],
        ),
        MessageRejected(
            topic="experiments",
            partition=0,
            position=7,
            key="k",
            reader="webhooks-experiments",
            reason="r",
            value="v",
        ),
    )
    await until(lambda: client.get("/deadletters"), lambda it: it["items"])
    letter = "/deadletters/webhooks-experiments/experiments/0/7"
    for path, body in (
        (f"/experiments/{made}/pause", None),
        (f"/experiments/{made}/resume", None),
        (f"/experiments/{made}/description", {"notes": "n"}),
        (f"/experiments/{made}/cancel", None),
        (f"/experiments/{made}/kill", None),
        ("/pools/default/configure", {"policy": "priority"}),
        (f"{letter}/retry", None),
        (f"{letter}/drop", None),
    ):
        answer = await client.call("POST", path, **({"json": body} if body else {}))
        assert answer.status < 300, (path, answer)


async def test_every_fact_carries_its_actor(world: World, client: Client) -> None:
    """The holder of the server's own token is the user `admin`; what agents report has none."""
    await _write_everything(world, client)
    events = await _events(world, topic.EXPERIMENTS, topic.POOLS, topic.DEADLETTER)
    asked = [event for event in events if event.source == _GATEWAY]

    assert len(asked) >= 9
    assert {(event.actor, event.onbehalfof) for event in asked} == {("admin", None)}
    others = {event.actor for event in events if event.source != _GATEWAY}
    assert others == {None}


@pytest.mark.usefixtures("anna")
async def test_both_are_named_where_one_acts_for_another(world: World, client: Client) -> None:
    """The actor is who held the token; `onbehalfof` is the user it acted for."""
    await _write_everything(world, client)
    events = await _events(world, topic.EXPERIMENTS, topic.POOLS, topic.DEADLETTER)
    asked = {(it.actor, it.onbehalfof) for it in events if it.source == _GATEWAY}

    assert asked == {("u7robot", "u1anna")}


@pytest.mark.usefixtures("anna")
async def test_what_was_decided_leads_to_the_actor(world: World) -> None:
    """From a grant back by `cause`: the request for a run, the submission, and who sent it."""
    await world.write(
        AgentJoined(
            pool="default",
            agent_id="a",
            incarnation=1,
            hostname="h",
            slots=[Slot(id=0, kind="cpu", name="CPU")],
        )
    )
    tasks = [
        asyncio.create_task(host(world.ledger, Scheduler())),
        asyncio.create_task(relay(world.ledger, RELAY)),
    ]
    async with world.searcher(), world.gateway() as client:
        await client.submit(EXPERIMENT_FILE, code=archive(**{"train.py": b"pass\n"}))
        events = await until(
            lambda: _events(world, *topic.TOPICS),
            lambda found: any("granted" in event.type for event in found),
        )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    by_id = {event.id: event for event in events}

    def first(event: Event) -> Event:
        while event.cause is not None:
            event = by_id[event.cause]
        return event

    caused = [event for event in events if event.type.startswith(("rung.trial", "rung.run"))]
    granted = [event for event in events if "granted" in event.type]
    assert caused
    assert {first(event).actor for event in [*caused, *granted]} == {"u7robot"}
    assert all(event.actor is None for event in [*caused, *granted])
