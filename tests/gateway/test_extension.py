"""Extending a search: a request where it runs, a new experiment where it has ended."""

import hashlib
from typing import Any

import pytest
import yaml
from msgspec import structs

from gateway.conftest import World, until
from rung.config import load
from rung.config.run_config import run_config
from rung.config.secret import hide
from rung.events.checkpoint import CheckpointDeleted, CheckpointStored
from rung.events.experiment import ExperimentSubmitted, ExtensionRequested, SearchExtended
from rung.events.trial import TrialExited, TrialValidated
from support.gateway.client import Answer, Client
from support.gateway.scenario import EXPERIMENT, History, submitted

CODE = b"code"
DIGEST = hashlib.sha256(CODE).hexdigest()
FILE: dict[str, Any] = {
    "name": "digits",
    "entrypoint": "true",
    "hyperparameters": {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}},
    "environment": {"environment_variables": ["HF_TOKEN=hunter2"]},
    "searcher": {
        "name": "random",
        "metric": "error",
        "max_trials": 2,
        "max_length": {"epochs": 4},
    },
}
SINGLE = FILE | {
    "hyperparameters": {"lr": 0.5},
    "searcher": {"name": "single", "metric": "error", "max_length": {"epochs": 4}},
}


def _history(file: dict[str, Any]) -> History:
    """Return an experiment with its first trials."""
    source = yaml.safe_dump(file)
    config = load(source, today_seed=7).expanded()
    fact = structs.replace(
        submitted(source=source),
        config=config,
        config_digest=run_config(config).digest,
        code_digest=DIGEST,
    )
    history = History()
    history.write(fact, origin="client/x")
    history.decide()
    return history


def _train(history: History, trials: int) -> History:
    """Train all trials to their length."""
    for index in range(trials):
        report: dict[str, Any] = {
            "experiment_id": EXPERIMENT,
            "trial_id": f"{EXPERIMENT}.{index}",
            "run": 1,
        }
        history.write(
            TrialValidated(**report, steps_completed=40, metrics={"error": 0.5, "epochs": 4.0})
        )
        history.write(
            CheckpointStored(
                **report,
                checkpoint_id=f"{EXPERIMENT}.{index}.1.40",
                steps_completed=40,
                size_bytes=1,
                files=1,
                digest="",
            )
        )
        history.write(
            TrialExited(
                **report, agent_id="a", outcome="finished", exit_code=0, signal=None, message=""
            )
        )
    history.decide()
    return history


async def _shown(world: World, client: Client, history: History) -> None:
    """Write a history, and wait until the gateway shows all of it."""
    world.store.put_bytes(f"code/{DIGEST}.tar.gz", CODE)
    await world.play(history)
    ended = any(b"rung.experiment.ended.v1" in it.record.value for it in history.decisions)

    async def shown() -> bool:
        found = (await client.call("GET", f"/experiments/{EXPERIMENT}")).json
        return bool(found.get("plan")) and (found["ended_at"] is not None or not ended)

    await until(shown, bool)


async def _extend(client: Client, query: str, key: str = "k") -> Answer:
    path = f"/experiments/{EXPERIMENT[:4]}/extend?{query}"
    return await client.call("POST", path, headers={"Idempotency-Key": key})


async def test_a_running_search_is_asked(world: World, client: Client) -> None:
    """Once under a key; the searcher's decision changes the plan that is shown."""
    await _shown(world, client, _history(FILE))
    first = await _extend(client, "trials=5")
    again = await _extend(client, "trials=5")
    other = await _extend(client, "trials=6")

    assert first.status == 202
    expected = {"experiment_id": EXPERIMENT, "parent": None, "trials": 5, "max_time": None}
    assert first.json == again.json == expected
    assert (other.status, other.kind) == (422, "idempotency-key-reused")
    asked = [it for it in await world.all("experiments") if isinstance(it, ExtensionRequested)]
    assert asked == [ExtensionRequested(experiment_id=EXPERIMENT, trials=5)]
    async with world.searcher():

        async def planned() -> int:
            shown = await client.get(f"/experiments/{EXPERIMENT}")
            return sum(each["trials"] for each in shown["plan"]["brackets"])

        await until(planned, (5).__eq__)
    assert any(isinstance(it, SearchExtended) for it in await world.all("searches"))


async def test_an_ended_search_goes_on_as_a_new_one(world: World, client: Client) -> None:
    """With its file, secrets, code and seed; its trials are the next ones of the sequence."""
    await _shown(world, client, _train(_history(FILE), 2))
    first = await _extend(client, "trials=5")
    again = await _extend(client, "trials=5")

    assert first.status == 202
    assert first.json == again.json
    assert first.json["parent"] == EXPERIMENT
    facts = [it for it in await world.all("experiments") if isinstance(it, ExperimentSubmitted)]
    old, new = sorted(facts, key=lambda it: it.experiment_id != EXPERIMENT)
    assert new.experiment_id == first.json["experiment_id"]
    assert (new.parent, new.code_digest) == (EXPERIMENT, DIGEST)
    assert new.config["searcher"]["max_trials"] == 3
    assert new.config["reproducibility"] == old.config["reproducibility"] | {"first_trial": 2}
    assert "hunter2" not in new.source
    assert "HF_TOKEN=********" in new.source
    left_out = {"searcher": 0, "reproducibility": 0, "internal": 0}
    assert {**new.config, **left_out} == {**hide(old.config), **left_out}


async def test_an_ended_single_trains_longer(world: World, client: Client) -> None:
    """Once under a key; from the last checkpoint of its trial, in the same unit."""
    await _shown(world, client, _train(_history(SINGLE), 1))
    answer = await _extend(client, "max_time=9")
    again = await _extend(client, "max_time=9")
    other = await _extend(client, "max_time=10")

    assert answer.status == 202
    assert again.json == answer.json
    assert (other.status, other.kind) == (422, "idempotency-key-reused")
    facts = [it for it in await world.all("experiments") if isinstance(it, ExperimentSubmitted)]
    [new] = [it for it in facts if it.experiment_id != EXPERIMENT]
    search = new.config["searcher"]
    assert (search["max_time"], search["time_metric"]) == (9, "epochs")
    assert search["source_checkpoint_uuid"] == f"{EXPERIMENT}.0.1.40"


async def test_a_single_without_a_checkpoint_does_not_go_on(world: World, client: Client) -> None:
    """It says what is missing, and names no field that the user did not write."""
    await _shown(world, client, _train(_history(SINGLE), 1))
    checkpoint = f"{EXPERIMENT}.0.1.40"
    deleted = CheckpointDeleted(
        experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.0", checkpoint_id=checkpoint
    )
    await world.write(deleted)
    await until(
        lambda: client.get(f"/checkpoints/{checkpoint}"), lambda it: it["state"] == "deleted"
    )
    answer = await _extend(client, "max_time=9")

    assert (answer.status, answer.kind) == (409, "no-checkpoint")
    assert "its trial has no checkpoint left to resume from" in answer.json["detail"]
    assert "source_trial_id" not in answer.json["detail"]


@pytest.mark.parametrize(
    ("file", "query", "status", "words"),
    [
        (FILE, "", 400, "either trials or max_time"),
        (FILE, "trials=5&max_time=9", 400, "either trials or max_time"),
        (FILE, "trials=2", 400, "has 2 already"),
        (FILE, "trials=0", 400, "trials"),
        (FILE, "trials=2000000", 400, "trials"),
        (FILE, "max_time=9", 409, "cannot have a longer length"),
        (SINGLE, "trials=2", 409, "cannot have more trials: it has one trial"),
        (SINGLE, "max_time=4", 400, "is 4 already"),
    ],
)
async def test_what_is_refused(  # noqa: PLR0917 - a table
    world: World, client: Client, file: dict[str, Any], query: str, status: int, words: str
) -> None:
    """With the reason, and nothing on record."""
    await _shown(world, client, _history(file))
    answer = await _extend(client, query)

    assert answer.status == status
    assert words in answer.json["detail"]
    assert len(await world.all("experiments")) == 1
