"""A search whose priority, limit and pool are changed on its way finishes on the curves it had."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.installation import Installation
from support.user import config, wait_for

GRID = {"name": "grid", "max_length": {"batches": 14}, "max_concurrent_trials": 3}


def _search(name: str, hold: Path) -> dict[str, Any]:
    """Return a search whose trials take ten steps at most while a file exists."""
    space = {
        "limit": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 3},
        "pause_s": 0.02,
    }
    variables = {"environment": {"environment_variables": [f"HOLD={hold}"]}}
    return config(name, GRID, hyperparameters=space, **variables) | {"max_restarts": 0}


@contextlib.contextmanager
def _another_pool(installation: Installation, folder: Path) -> Iterator[None]:
    """Have an agent offer two slots in the pool `west`."""
    data = installation.folder
    command = [sys.executable, "-m", "rung.agent", "--ledger", str(data / "ledger")]
    command += ["--objects", (data / "objects").as_uri(), "--folder", str(folder)]
    command += ["--agent-id", "west", "--pool", "west", "--slots", "2", "--cold"]
    with subprocess.Popen(command) as process:
        try:
            wait_for(
                lambda: any(
                    agent["id"] == "west" and agent["state"] == "joined"
                    for agent in installation.get("/agents")["items"]
                ),
                "the agent of the other pool joined",
            )
            yield
        finally:
            process.terminate()


def _busy(installation: Installation, pool: str) -> int:
    """Return how many slots of a pool trials hold."""
    return sum(
        slot["allocation_id"] is not None
        for agent in installation.get("/agents")["items"]
        for slot in agent["slots"]
        if agent["pool"] == pool
    )


def _events(installation: Installation, experiment: str, kind: str) -> list[dict[str, Any]]:
    lines = installation.rung("ledger", "show", experiment, "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    return [event["data"] for event in events if event["type"] == kind]


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_search_is_given_other_resources(installation: Installation, tmp_path: Path) -> None:
    """Fewer slots at once, then a pool without agents for it, then one that has some."""
    hold = tmp_path / "hold"
    calm = installation.result(installation.submit(_search("calm", hold)))
    hold.touch()
    with _another_pool(installation, tmp_path / "west"):
        experiment = installation.submit(_search("changed", hold))
        wait_for(lambda: _busy(installation, "default") > 1, "it holds several slots")
        installation.rung("set", "changed", "--max-slots", "1", "--priority", "20")
        wait_for(lambda: _busy(installation, "default") == 1, "it keeps to its limit")
        refused = installation.rung("set", "changed", "--pool", "nowhere", check=False)
        assert refused.returncode == 6
        assert "pool nowhere has no agent" in refused.stderr
        assert _busy(installation, "default") <= 1
        installation.rung(
            "set", "--where", "name:changed", "--pool", "west", "--max-slots", "none", "--yes"
        )
        wait_for(lambda: _busy(installation, "west") == 2, "it goes on in the other pool")
        hold.unlink()
        assert installation.result(experiment) == calm
        assert _busy(installation, "default") == 0
    exits = _events(installation, experiment, "rung.trial.exited.v1")
    left = [it for it in exits if it["outcome"] != "finished"]
    assert left, "some were asked to leave"
    for found in left:  # a script that has not spoken yet gets SIGTERM
        early = found["outcome"] == "killed" and found["message"].startswith("ended as asked")
        assert early or found["outcome"] == "preempted", found
    runs = _events(installation, experiment, "rung.run.requested.v1")
    assert {run["pool"] for run in runs} == {"default", "west"}
    assert all(run["priority"] == 20 for run in runs if run["pool"] == "west")
    installation.rung("audit")


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_a_search_ends_at_its_limit_whatever_is_killed(
    installation: Installation, tmp_path: Path
) -> None:
    """Its trials checkpoint, its results are kept, and what it used is what usage shows."""
    hold = tmp_path / "hold"
    hold.touch()
    file = _search("limited", hold) | {"resources": {"max_slot_hours": 100}}
    experiment = installation.submit(file)
    wait_for(lambda: _busy(installation, "default") > 1, "it holds several slots")
    wait_for(lambda: installation.validations(experiment) > 2, "its trials report")
    installation.kill_agent()
    wait_for(lambda: _busy(installation, "default") > 1, "they go on")
    installation.kill_server()
    installation.up()
    wait_for(lambda: _busy(installation, "default") > 1, "they go on")
    assert installation.get(f"/experiments/{experiment}")["state"] == "active"
    before = _slot_hours(installation)
    limit = before + 0.003
    installation.rung("set", "limited", "--max-slot-hours", f"{limit:.6f}")
    end = installation.rung("wait", experiment, "--quiet")
    assert f"its limit of {limit:.6f}".rstrip("0") in end.stdout
    shown = installation.get(f"/experiments/{experiment}")
    assert shown["state"] == "completed"
    states = {trial["state"] for trial in shown["trials"]}
    assert "stopped" in states
    assert states <= {"stopped", "completed"}
    trained = [trial for trial in shown["trials"] if trial["validations"]]
    assert len(trained) > 1
    for trial in trained:
        assert installation.get(f"/trials/{trial['id']}")["checkpoints"], trial["id"]
    used = _slot_hours(installation)
    minute = 2 / 60  # of its two slots: so late the gateway looks after its start
    assert limit <= used < limit + minute + 0.02
    assert _busy(installation, "default") == 0
    (reached,) = _events(installation, experiment, "rung.experiment.limit_reached.v1")
    assert limit <= reached["slot_ms"] / 3_600_000 <= used
    installation.rung("audit")


def _slot_hours(installation: Installation) -> float:
    """Return what all experiments of the installation used."""
    return float(installation.get("/usage?since=1d")["total"]["slot_hours"])
