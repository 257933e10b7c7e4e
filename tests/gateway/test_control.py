"""Pause, resume, cancel, kill: on record once, refused where they cannot be."""

import asyncio

import pytest

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.events.experiment import (
    CancelRequested,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    ResumeRequested,
)
from rung.events.trial import TrialExited, TrialKillRequested
from support.gateway.client import Answer, Client
from support.gateway.scenario import EXPERIMENT, History, play, submitted

FACTS = {
    "pause": PauseRequested,
    "resume": ResumeRequested,
    "cancel": CancelRequested,
    "kill": KillRequested,
}


async def _submit(client: Client) -> str:
    return str((await client.submit(EXPERIMENT_FILE)).json["experiment_id"])


@pytest.mark.parametrize("wish", FACTS)
async def test_wish_is_on_record(world: World, client: Client, wish: str) -> None:
    """Each wish becomes its fact; a beginning of the id is enough to name the experiment."""
    experiment = await _submit(client)
    answer = await client.call("POST", f"/experiments/{experiment[:4]}/{wish}")

    assert answer.status == 202
    assert answer.json == {"experiment_id": experiment, "requested": wish}
    assert (await world.all("experiments"))[1] == FACTS[wish](experiment_id=experiment)


async def test_same_key_asks_once(world: World) -> None:
    """A wish under a key is on record once, over a restart too; the key stands for that wish."""
    headers = {"Idempotency-Key": "k"}
    async with world.gateway() as client:
        experiment = await _submit(client)
        path = f"/experiments/{experiment}/pause"
        first = [await client.call("POST", path, headers=dict(headers)) for _ in range(3)]
    async with world.gateway() as client:
        again = await client.call("POST", path, headers=dict(headers))
        other = await client.call(
            "POST", f"/experiments/{experiment}/resume", headers=dict(headers)
        )

    assert {answer.status for answer in (*first, again)} == {202}
    assert (other.status, other.kind) == (422, "idempotency-key-reused")
    assert [type(fact) for fact in await world.all("experiments")] == [
        ExperimentSubmitted,
        PauseRequested,
    ]


async def test_same_key_at_the_same_time(world: World, client: Client) -> None:
    """Requests under one key that arrive together are one wish."""
    path = f"/experiments/{await _submit(client)}/pause"
    asking = (client.call("POST", path, headers={"Idempotency-Key": "k"}) for _ in range(5))
    answers = await asyncio.gather(*asking)

    assert [answer.status for answer in answers] == [202] * 5
    facts = await world.all("experiments")
    assert sum(isinstance(fact, PauseRequested) for fact in facts) == 1


async def test_what_follows_is_shown(world: World, client: Client) -> None:
    """The states that the searcher decides are shown: paused, active again, canceled."""
    async with world.searcher():
        experiment = await _submit(client)
        path = f"/experiments/{experiment}"

        async def state() -> str:
            return str((await client.get(path))["state"])

        for wish, expected in (("pause", "paused"), ("resume", "active"), ("kill", "canceling")):
            assert (await client.call("POST", f"{path}/{wish}")).status == 202
            await until(state, expected.__eq__)
        refused = await client.call("POST", f"{path}/pause")

    assert (refused.status, refused.kind) == (409, "ending")


@pytest.mark.parametrize("wish", FACTS)
async def test_ended_experiment_takes_no_wish(world: World, wish: str) -> None:
    """What has ended cannot be paused, resumed, canceled or killed."""
    await world.play(play(1))
    async with world.gateway() as client:
        answer = await client.call("POST", f"/experiments/{EXPERIMENT}/{wish}")

    assert (answer.status, answer.kind) == (409, "ended")
    done = {"pause": "paused", "resume": "resumed", "cancel": "canceled", "kill": "killed"}
    assert answer.json["detail"].endswith(f"it cannot be {done[wish]}")


def _begun() -> History:
    """Return a search with its first trials."""
    history = History()
    history.write(submitted(max_trials=3), origin="client/x")
    history.decide()
    return history


async def test_a_trial_is_killed_once(world: World, client: Client) -> None:
    """On record by its whole id; under a key it is asked for once, and for one trial."""
    await world.play(_begun())
    name = f"{EXPERIMENT[:4]}.1"

    async def there() -> int:
        return (await client.call("GET", f"/trials/{name}")).status

    await until(there, (200).__eq__)

    async def kill(trial: str, key: str) -> Answer:
        path = f"/trials/{trial}/kill"
        return await client.call("POST", path, headers={"Idempotency-Key": key})

    asked = [await kill(name, "k") for _ in range(2)]
    other = await kill(f"{EXPERIMENT}.0", "k")
    ended = await client.call(
        "POST", f"/experiments/{EXPERIMENT}/kill", headers={"Idempotency-Key": "k"}
    )
    unknown = await kill(f"{EXPERIMENT}.9", "u")

    assert [it.status for it in (*asked, other, ended, unknown)] == [202, 202, 422, 422, 404]
    assert asked[1].json == {"trial_id": f"{EXPERIMENT}.1", "requested": "kill"}
    kills = [it for it in await world.all("experiments") if isinstance(it, TrialKillRequested)]
    assert kills == [TrialKillRequested(experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.1")]


async def test_a_trial_that_cannot_be_killed(world: World, client: Client) -> None:
    """It has ended."""
    history = _begun()
    history.write(
        TrialExited(
            experiment_id=EXPERIMENT,
            trial_id=f"{EXPERIMENT}.0",
            run=1,
            agent_id="a",
            outcome="finished",
            exit_code=0,
            signal=None,
            message="",
        )
    )
    history.decide()
    await world.play(history)

    async def closed() -> str:
        answer = await client.call("GET", f"/trials/{EXPERIMENT}.0")
        return str(answer.json.get("state"))

    await until(closed, {"completed", "errored"}.__contains__)
    over = await client.call("POST", f"/trials/{EXPERIMENT}.0/kill")

    assert (over.status, over.kind) == (409, "ended")
