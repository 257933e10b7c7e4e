"""Every operation that writes is done once under one Idempotency-Key."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gateway.conftest import EXPERIMENT_FILE, World, archive, until
from gateway.test_series import Kept
from rung.events import decode, topic
from rung.events.deadletter import MessageRejected
from rung.events.experiment import DeletionScheduled
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.routes import ROUTES
from rung.runtime import host
from rung.runtime.relay import relay
from rung.scheduler.service import RELAY
from support.gateway.client import Client
from support.gateway.holds import HOLDS
from support.gateway.scenario import EXPERIMENT, play
from support.runtime.decided import append_decision

_WRITES_NOTHING = {"validate_experiment", "resolve_config"}
_SHOWN_ONCE = {"create_token", "rotate_token", "revoke_token", "set_password"}
"""A secret is shown once, and these are done by being done."""
_TO_ANOTHER_PLACE = {"move_experiment"}
"""In test_place.py, where there is another one."""
_LETTER = "/deadletters/webhooks-experiments/experiments/0/7"
_HOME = "/workspaces/default"
_REQUESTS: dict[str, tuple[str, Any]] = {
    "submit_experiment": ("/experiments", "form"),
    "pause_experiment": ("/experiments/{made}/pause", None),
    "resume_experiment": ("/experiments/{made}/resume", None),
    "cancel_experiment": ("/experiments/{made}/cancel", None),
    "kill_experiment": ("/experiments/{made}/kill", None),
    "kill_trial": ("/trials/{made}.0/kill", None),
    "move_trial": ("/trials/{made}.0/move", None),
    "extend_experiment": ("/experiments/{made}/extend?trials=9", None),
    "change_retention": ("/experiments/{made}/retention", {"save_trial_latest": 3}),
    "change_description": ("/experiments/{made}/description", {"notes": "n"}),
    "delete_experiment": (f"/experiments/{EXPERIMENT}/delete", None),
    "restore_experiment": (f"/experiments/{EXPERIMENT}/restore", None),
    "delete_checkpoint": ("/checkpoints/{stored}/delete", None),
    "collect_logs": (f"/logs/collect?experiment={EXPERIMENT}&before=5000", None),
    "change_resources": ("/experiments/{made}/resources", {"priority": 7}),
    "change_experiments": ("/experiments:batch", {"action": "pause", "ids": ["{made}"]}),
    "set_secret": (f"{_HOME}/secrets", {"name": "new", "value": "hush-hush"}),
    "delete_secret": (f"{_HOME}/secrets/there/delete", None),
    "set_template": (f"{_HOME}/templates", {"name": "new", "document": "max_restarts: 1"}),
    "delete_template": (f"{_HOME}/templates/there/delete", None),
    "test_webhook": ("/webhooks/there/test", None),
    "redeliver": ("/webhooks/there/deliveries/{sent}/redeliver", None),
    "create_model": ("/models", {"name": "new"}),
    "change_model": ("/models/there", {"description": "d"}),
    "move_model": ("/models/there/move", {"workspace": "other"}),
    "archive_model": ("/models/there/archive", None),
    "unarchive_model": ("/models/there/unarchive", None),
    "delete_model": ("/models/there/delete", None),
    "register_version": ("/models/there/versions", {"checkpoint": "{stored}"}),
    "change_version": ("/models/there/versions/1", {"notes": "n"}),
    "delete_version": ("/models/there/versions/1/delete", None),
    "configure_pool": ("/pools/default/configure", {"policy": "priority"}),
    "retry_dead_letter": (f"{_LETTER}/retry", None),
    "drop_dead_letter": (f"{_LETTER}/drop", None),
}
"""By operation: path and body of a request that is accepted."""


def test_every_operation_that_writes_takes_a_key() -> None:
    """A route that writes is idempotent, and has a request below."""
    found = [
        route for route in ROUTES if route.method != "GET" and not route.path.startswith("/auth/")
    ]
    writing = {route.name for route in found} - _WRITES_NOTHING - _SHOWN_ONCE
    decided = {route.name for route in found if route.about == "directory"}

    assert {route.name for route in ROUTES if route.idempotent} == writing
    assert set(_REQUESTS) == writing - decided - _TO_ANOTHER_PLACE


@pytest.fixture
async def busy(world: World) -> AsyncIterator[tuple[Client, dict[str, str]]]:
    """A search that trains and one that has ended, a dead letter, lines."""
    await world.play(play(1))
    world.series = Kept()
    await world.write(
        MessageRejected(
            topic="experiments", partition=0, position=7, key="k",
            reader="webhooks-experiments", reason="r", value="v",
        ),
    )  # fmt: skip
    task = asyncio.create_task(relay(world.ledger, RELAY))
    deciding = asyncio.create_task(host(world.ledger, DirectoryProcessor()))
    holding = asyncio.create_task(relay(world.ledger, HOLDS))
    async with world.searcher(), world.gateway() as client:
        code = archive(**{"train.py": b"\n"})
        made = (await client.submit(EXPERIMENT_FILE, code=code)).json["experiment_id"]
        await until(lambda: client.get("/queue"), lambda it: it["items"])
        await until(
            lambda: client.get(f"/experiments/{made}"),
            lambda it: it["plan"] is not None and it["trials"],
        )
        listed = await client.get(f"/experiments/{EXPERIMENT}/checkpoints")
        for kind, body in (("secrets", {"value": "v"}), ("templates", {"document": "name: x"})):
            answer = await client.call("POST", f"{_HOME}/{kind}", json={"name": "there"} | body)
            assert answer.status == 201, answer
        hook = {"name": "there", "url": "https://x.example.com/", "logs": ["x"]}
        answer = await client.call("POST", "/webhooks", json=hook)
        assert answer.status == 201, answer
        sent = (await client.call("POST", "/webhooks/there/test")).json["id"]
        stored = next(it["id"] for it in listed["items"] if it["state"] == "stored")
        for place, wanted in (
            ("/workspaces", {"name": "other"}),
            ("/models", {"name": "there"}),
            ("/models/there/versions", {"checkpoint": stored}),
        ):
            answer = await client.call("POST", place, json=wanted)
            assert answer.status == 201, answer
        yield client, {"made": made, "stored": stored, "sent": sent}
    for each in (task, deciding, holding):
        each.cancel()
    await asyncio.gather(task, deciding, holding, return_exceptions=True)


async def _facts(world: World) -> set[tuple[str, str | None, int | None]]:
    """Return the facts under the key, without repetitions, which their readers drop."""
    found: set[tuple[str, str | None, int | None]] = set()
    pools, experiments = (topic.POOLS, topic.DEADLETTER), (topic.EXPERIMENTS, topic.LOGS)
    for name in (*experiments, *pools, topic.REQUESTS, topic.DELIVERIES):
        for partition in range(world.ledger.partitions(name)):
            for record in await world.ledger.read(name, partition, 0, 10_000):
                event = decode(record.value)
                if event.origin in {"client/the-key", f"client/the-key/{record.key}"}:
                    found.add((record.key, event.type, event.sequence))
    return found


@pytest.mark.parametrize("name", _REQUESTS)
async def test_done_once(world: World, busy: tuple[Client, dict[str, str]], name: str) -> None:
    """The second request is answered as the first one was, and puts nothing more on record."""
    client, ids = busy
    path, body = _REQUESTS[name]
    if name == "restore_experiment":
        gone = DeletionScheduled(experiment_id=EXPERIMENT, trials=1, until_ms=1)
        await append_decision(world.ledger, gone)
        shown = f"/experiments/{EXPERIMENT}"
        await until(lambda: client.call("GET", shown), lambda answer: answer.status == 410)

    if name in {"delete_checkpoint", "delete_experiment"}:  # no version of a model may need it
        freed = await client.call("POST", "/models/there/versions/1/delete")
        assert freed.status == 200, freed

    async def send() -> Any:
        options: dict[str, Any] = {"headers": {"Idempotency-Key": "the-key"}}
        if body == "form":
            form = aiohttp.FormData()
            form.add_field("config", EXPERIMENT_FILE, filename="experiment.yaml")
            options["data"] = form
        elif body is not None:
            text = json.dumps(body)
            for key, value in ids.items():
                text = text.replace("{" + key + "}", value)
            options["json"] = json.loads(text)
        return await client.call("POST", path.format(**ids), **options)

    first = await send()
    assert first.status in {200, 201, 202}, first
    written = await _facts(world)
    assert written
    second = await send()
    assert (second.status, json.loads(second.body).keys()) == (first.status, first.json.keys())
    assert await _facts(world) == written
