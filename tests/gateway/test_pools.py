"""Configuring a pool: on record once, refused where the scheduler could not go by it."""

from typing import Any

import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.events.allocation import AgentJoined, PoolConfigured, Slot
from rung.events.experiment import ExperimentSubmitted
from rung.events.installation import PoolUpgraded
from rung.runtime.levels import raise_level
from support.gateway.client import Client

_PATH = "/pools/default/configure"
_PRIORITY = {"policy": "priority", "options": {}}


async def _facts(world: World) -> list[PoolConfigured]:
    return [each for each in await world.all("pools") if isinstance(each, PoolConfigured)]


async def test_a_policy_is_on_record(world: World, client: Client) -> None:
    """A choice becomes its fact, and the status shows it."""
    slot = Slot(id=0, kind="cpu", name="CPU")
    await world.write(
        AgentJoined(pool="default", agent_id="a", incarnation=1, hostname="h", slots=[slot])
    )
    await until(lambda: client.get("/agents"), lambda found: bool(found["items"]))
    answer = await client.call("POST", _PATH, json=_PRIORITY)
    empty = await client.call("POST", "/pools/west/configure", json={"policy": "priority"})
    status = await client.get("/status")

    assert answer.status == 202
    assert answer.json == {"pool": "default", **_PRIORITY, "warnings": []}
    assert empty.json["warnings"] == ["pool west has no agent so far; `rung status` lists pools"]
    assert sorted(await _facts(world), key=lambda each: each.pool) == [
        PoolConfigured(pool=pool, policy="priority", options={}) for pool in ("default", "west")
    ]
    assert [(it["name"], it["policy"], it["options"]) for it in status["pools"]] == [
        ("default", "priority", {}),
        ("west", "priority", {}),
    ]


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ({"policy": "lottery"}, "policy", "there is no policy 'lottery'; there is priority"),
        ({"policy": "priority", "options": {"a": 1}}, "options", "contains unknown field `a`"),
        ({"policy": "priority", "option": {}}, "body", "contains unknown field `option`"),
        ({"policy": 3}, "policy", "Expected `str`, got `int`"),
        ({}, "body", "missing required field `policy`"),
    ],
)
async def test_what_the_scheduler_does_not_know_is_refused(
    world: World, client: Client, body: dict[str, Any], path: str, message: str
) -> None:
    """It says what is wrong and what there is; nothing comes on record."""
    answer = await client.call("POST", _PATH, json=body)

    assert (answer.status, answer.kind) == (422, "invalid-policy")
    [item] = answer.json["errors"]
    assert item["path"] == path
    assert message in item["message"]
    assert await _facts(world) == []


async def test_what_is_no_request_is_refused(world: World, client: Client) -> None:
    """No JSON, too much of it, and a pool that cannot be printed."""
    no_json = await client.call("POST", _PATH, data=b"{")
    too_large = await client.call("POST", _PATH, data=b" " * 70_000)
    unprintable = await client.call("POST", "/pools/a%0Ab/configure", json=_PRIORITY)

    assert [no_json.status, too_large.status, unprintable.status] == [400, 413, 400]
    assert await _facts(world) == []


async def test_same_key_configures_once(world: World, client: Client) -> None:
    """A choice under a key is on record once; the key stands for that choice."""
    headers = {"Idempotency-Key": "k"}
    first = [await client.call("POST", _PATH, json=_PRIORITY, headers=headers) for _ in range(2)]
    moved = await client.call("POST", _PATH, json=_PRIORITY, headers={"Idempotency-Key": "l"})
    world.policy_of = lambda _name, _options: None
    async with world.gateway() as restarted:
        again = await restarted.call("POST", _PATH, json=_PRIORITY, headers=headers)
        other = await restarted.call("POST", _PATH, json={"policy": "x"}, headers=headers)

    assert {answer.status for answer in (*first, moved, again)} == {202}
    assert (other.status, other.kind) == (422, "idempotency-key-reused")
    assert len(await _facts(world)) == 2


async def test_a_gateway_alone_configures_nothing(world: World) -> None:
    """Without the scheduler's table it cannot tell which policies there are."""
    world.policy_of = None
    async with world.gateway() as client:
        answer = await client.call("POST", _PATH, json=_PRIORITY)

    assert (answer.status, answer.kind) == (503, "unavailable")


async def test_a_submission_carries_what_policies_go_by(world: World, client: Client) -> None:
    """Its workspace, its weight and the time of its submission, in the order of submissions."""
    for place, weight in (("workspace: default\nproject: default\n", 2.5), ("", 1)):
        await client.submit(EXPERIMENT_FILE + place + f"resources: {{weight: {weight}}}\n")
    found = await world.all("experiments")
    submissions = [
        each.submission
        for each in found
        if isinstance(each, ExperimentSubmitted) and each.submission
    ]
    first, second = sorted(submissions, key=lambda each: each.time_ms)

    assert sorted([first.weight, second.weight]) == [1.0, 2.5]
    assert (first.workspace, second.workspace) == ("default", "default")
    assert (first.owner, second.owner) == ("admin", "admin")
    assert 1_700_000_000_000 < first.time_ms <= second.time_ms


async def test_a_pool_is_raised_to_the_installation_s_level(world: World, client: Client) -> None:
    """By whoever submits to it or configures it next; once, and before what it is raised for."""
    await client.call("POST", _PATH, json=_PRIORITY)
    await raise_level(world.ledger, 3)
    text = f"{EXPERIMENT_FILE}resources: {{resource_pool: west}}\n"
    for _ in range(2):
        assert (await client.submit(text)).status == 201
        assert (await client.call("POST", _PATH, json=_PRIORITY)).status == 202

    configured = PoolConfigured(pool="default", policy="priority", options={})
    of = {"default": list[object](), "west": list[object]()}
    for each in await world.all("pools"):
        of[each.pool].append(each)  # type: ignore[union-attr, index]
    upgraded = PoolUpgraded(pool="default", level=3)
    assert of["default"] == [configured, upgraded, configured, configured]
    assert of["west"] == [PoolUpgraded(pool="west", level=3)]
