"""Trials that are preempted, moved and chased off their agents finish on the curves they had."""

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rung.client import Client, Conflict
from support.installation import Installation
from support.user import config, wait_for

HYPERBAND = {
    "name": "hyperband",
    "max_time": 27,
    "divisor": 3,
    "time_metric": "batches",
    "max_concurrent_trials": 4,
}


def _search(name: str, searcher: dict[str, Any], **more: Any) -> dict[str, Any]:
    space = {
        "limit": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 20},
        "pause_s": 0.05,
    }
    return config(name, searcher, hyperparameters=space, **more) | {"max_restarts": 0}


@contextlib.contextmanager
def _second_agent(installation: Installation, folder: Path) -> Iterator[psutil.Process]:
    """Have another agent offer two slots to the pool."""
    data = installation.folder
    command = [sys.executable, "-m", "rung.agent", "--ledger", str(data / "ledger")]
    command += ["--objects", (data / "objects").as_uri(), "--folder", str(folder)]
    command += ["--agent-id", "second", "--slots", "2", "--cold"]
    with subprocess.Popen(command) as process:
        try:
            wait_for(
                lambda: any(
                    agent["id"] == "second" and agent["state"] == "joined"
                    for agent in installation.get("/agents")["items"]
                ),
                "the second agent joined",
            )
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def _running(installation: Installation, experiment: str) -> list[str]:
    shown = installation.get(f"/experiments/{experiment}")
    return [trial["id"] for trial in shown["trials"] if trial["state"] == "running"]


def _records(installation: Installation, experiment: str, kind: str) -> list[dict[str, Any]]:
    """Return the data of an experiment's events of a type."""
    lines = installation.rung("ledger", "show", experiment, "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    return [event["data"] for event in events if event["type"] == kind]


def _move(installation: Installation, trial_id: str) -> bool:
    """Ask for a trial to be moved; return whether it still ran."""
    with Client(*installation.server) as client:
        try:
            client.move(trial_id)
        except Conflict:
            return False
        return True


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_search_under_preemption_finds_the_same(
    installation: Installation, tmp_path: Path
) -> None:
    """With a random trial moved every half second or so, metrics and checkpoints are the same.

    In as many searches as it takes until enough were moved: one, unless the machine is busy.
    """
    calm = installation.result(installation.submit(_search("calm", HYPERBAND)))
    chance = random.Random(20)  # noqa: S311 - repeatable, not secret
    asked = preempted = 0
    agents = set[str]()
    with _second_agent(installation, tmp_path / "second"):
        while asked < 10 or preempted < 5 or "second" not in agents:
            experiment = installation.submit(_search(f"storm-{asked}", HYPERBAND))
            asked += _storm(installation, experiment, chance)
            storm = installation.result(experiment)
            assert [it[:5] for it in storm["trials"]] == [it[:5] for it in calm["trials"]]
            assert storm == calm
            exits = _records(installation, experiment, "rung.trial.exited.v1")
            preempted += sum(found["outcome"] == "preempted" for found in exits)
            starts = _records(installation, experiment, "rung.trial.started.v1")
            agents |= {found["agent_id"] for found in starts}

    installation.rung("audit")


def _storm(installation: Installation, experiment: str, chance: random.Random) -> int:
    """Ask for trials to be moved until their search has ended; return how often one still ran."""
    asked = 0
    while not installation.get(f"/experiments/{experiment}")["ended_at"]:
        running = _running(installation, experiment)
        if running:
            asked += _move(installation, chance.choice(running))
        time.sleep(chance.uniform(0.2, 0.8))  # the storm's own pace
    return asked


EVERY = 5


def _stubborn(name: str, pause_s: float) -> dict[str, Any]:
    search = {"name": "single", "max_length": {"batches": 60}}
    plain = config(name, search, preemption_timeout=1, max_restarts=0)
    return plain | {"hyperparameters": {"pause_s": pause_s, "every": EVERY}}


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_who_does_not_leave_in_time_is_killed_and_loses_little(
    installation: Installation,
) -> None:
    """It goes on from its last checkpoint, on the same curve, and no restart is counted."""
    code = Path(__file__).parent / "stubborn"
    calm = installation.result(installation.submit(_stubborn("calm", 0.0), code))
    experiment = installation.submit(_stubborn("deaf", 0.2), code)
    wait_for(lambda: installation.validations(experiment) > EVERY, "it trains")
    assert _move(installation, f"{experiment}.0")
    deaf = installation.result(experiment)

    killed, finished = _records(installation, experiment, "rung.trial.exited.v1")
    (restored,) = _records(installation, experiment, "rung.trial.restored.v1")
    assert (killed["outcome"], finished["outcome"]) == ("killed", "finished")
    assert "did not leave within 1 s" in killed["message"]
    assert 0 <= killed["steps_completed"] - restored["steps_completed"] <= EVERY
    assert deaf["trials"][0][5] == calm["trials"][0][5]
    assert installation.get(f"/trials/{experiment}.0")["restarts"] == 0
    path = f"/trials/{experiment}.0/metrics?kind=system&name=memory_bytes"
    wait_for(lambda: installation.get(path)["points"], "what it took of the machine is a curve")
