"""One change of many experiments: each is reported, and nothing is done twice."""

from typing import Any

import pytest

from gateway.conftest import World, until
from rung.client import AsyncClient, BatchWanted
from rung.events.experiment import (
    DescriptionChanged,
    KillRequested,
    PauseRequested,
    ResourcesRequested,
    RetentionChanged,
)
from rung.events.trial import TrialExited
from support.gateway.client import TOKEN, Answer, Client
from support.gateway.scenario import EXPERIMENT, History, submitted

IDS = ("m4w8x2ma", "zz08x2ma", EXPERIMENT)
"""The last one has ended."""


@pytest.fixture
async def known(world: World, client: Client) -> Client:
    """Return a client of a gateway that has three experiments."""
    history = History()
    history.write(submitted())
    history.decide()
    history.write(KillRequested(experiment_id=EXPERIMENT))
    for spec in list(history.running.values()):
        killed = TrialExited(
            experiment_id=EXPERIMENT,
            trial_id=spec.trial_id,
            run=spec.run,
            agent_id="a",
            outcome="killed",
            exit_code=None,
            signal=9,
            message="",
        )
        history.write(killed)
    history.decide()
    await world.play(history)
    for name in IDS[:2]:
        await world.write(submitted(name))
    for state, count in (("canceled", 1), ("active", 2)):
        await until(
            lambda state=state: client.get(f"/experiments?state={state}"),  # type: ignore[misc]
            lambda found, count=count: len(found["items"]) == count,  # type: ignore[misc]
        )
    return client


async def _batch(client: Client, key: str = "k", /, **wanted: Any) -> Answer:
    headers = {"Idempotency-Key": key}
    return await client.call("POST", "/experiments:batch", json=wanted, headers=headers)


def _outcomes(answer: Answer) -> dict[str, str]:
    assert answer.status == 200, answer.json
    return {it["experiment_id"]: it["kind"] or it["outcome"] for it in answer.json["items"]}


async def test_each_is_reported(world: World, known: Client) -> None:
    """Done, or refused with the reason; what is refused keeps no other one back."""
    answer = await _batch(known, action="pause", ids=[*IDS, "nothing", IDS[0]])
    assert _outcomes(answer) == {
        IDS[0]: "done",
        IDS[1]: "done",
        IDS[2]: "ended",
        "nothing": "not-found",
    }
    assert (answer.json["done"], answer.json["refused"]) == (2, 2)
    (ended,) = [it for it in answer.json["items"] if it["experiment_id"] == IDS[2]]
    assert "has ended (canceled); it cannot be paused" in ended["reason"]
    facts = [it for it in await world.all("experiments") if isinstance(it, PauseRequested)]
    assert sorted(it.experiment_id for it in facts) == [IDS[0], IDS[1]]


async def test_a_repetition_does_what_is_left(world: World, known: Client) -> None:
    """Under one key each is asked once; another request under it is refused for each."""
    await _batch(known, action="kill", ids=[IDS[0]])
    again = await _batch(known, action="kill", ids=[IDS[0], IDS[1]])
    assert set(_outcomes(again).values()) == {"done"}
    facts = [it for it in await world.all("experiments") if isinstance(it, KillRequested)]
    assert sorted(it.experiment_id for it in facts if it.experiment_id in IDS[:2]) == [*IDS[:2]]
    other = await _batch(known, action="cancel", ids=[IDS[0]])
    assert _outcomes(other) == {IDS[0]: "idempotency-key-reused"}


async def test_by_a_filter(world: World, known: Client) -> None:
    """Those that it selects; it may select none."""
    answer = await _batch(
        known, action="set", filter="state:active", resources={"priority": 3, "max_slots": 2}
    )
    assert _outcomes(answer) == {IDS[0]: "done", IDS[1]: "done"}
    facts = [it for it in await world.all("experiments") if isinstance(it, ResourcesRequested)]
    assert {(it.priority, it.max_slots) for it in facts} == {(3, 2)}
    assert (await _batch(known, action="pause", filter="nothing")).json["items"] == []


async def test_descriptions_and_retention(world: World, known: Client) -> None:
    """Labels are added and what is kept is changed; both also of experiments that have ended."""
    labels = await _batch(
        known, "1", action="describe", ids=[*IDS], description={"add_labels": ["x"]}
    )
    kept = await _batch(
        known, "2", action="retain", ids=[*IDS], retention={"save_trial_latest": 3}
    )
    assert {*_outcomes(labels).values(), *_outcomes(kept).values()} == {"done"}
    found = await world.all("experiments")
    assert sum(isinstance(it, DescriptionChanged) for it in found) == len(IDS)
    assert sum(isinstance(it, RetentionChanged) for it in found) == len(IDS)
    assert len((await known.get("/experiments?label=x"))["items"]) == len(IDS)


async def test_deletions(known: Client) -> None:
    """Those that have ended alone."""
    answer = await _batch(known, action="delete", ids=[*IDS])
    assert _outcomes(answer) == {IDS[0]: "not-ended", IDS[1]: "not-ended", IDS[2]: "done"}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"action": "pause"}, "ids: give either ids or a filter"),
        ({"action": "pause", "ids": ["a"], "filter": "b"}, "either ids or a filter"),
        ({"action": "explode", "ids": ["a"]}, "choose one of cancel, delete, describe, "),
        ({"action": "set", "ids": ["a"]}, "resources: is missing"),
        ({"action": "pause", "ids": ["a"], "resources": {}}, "belongs to another action"),
        ({"action": "set", "ids": ["a"], "resources": {"priority": 0}}, "resources.priority"),
        ({"action": "pause", "filter": "older:soon"}, "older"),
        ({"action": "pause", "ids": ["a"] * 1_001}, "ids"),
    ],
)
async def test_what_cannot_be_read(known: Client, wanted: dict[str, Any], words: str) -> None:
    """It is refused as a whole, with the field."""
    answer = await _batch(known, **wanted)
    assert (answer.status in {400, 422}, words in answer.json["detail"]) == (True, True), (
        answer.json
    )


async def test_the_typed_client(known: Client) -> None:
    """It sends what is given, and returns each outcome."""
    async with AsyncClient(known.url, TOKEN) as client:
        found = await client.batch(BatchWanted(action="pause", ids=[IDS[0]]))
        assert [(it.experiment_id, it.outcome) for it in found.items] == [(IDS[0], "done")]
