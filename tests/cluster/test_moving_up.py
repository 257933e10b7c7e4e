"""The guide to moving from one machine to a cluster, command by command."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.conftest import NewCluster
from servers.cluster import LocalCluster
from support.installation import Installation
from support.user import User, config, wait_for

GUIDE: Final = Path(__file__).parents[2] / "docs" / "MOVING_UP.md"
_BLOCK: Final = re.compile(r"^```sh (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS: Final = dict(_BLOCK.findall(GUIDE.read_text()))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Installation]:
    """Give a `rung up` of one machine."""
    item = Installation(tmp_path / "machine")
    item.up()
    yield item
    item.down()


@pytest.fixture
def cluster(new_cluster: NewCluster) -> LocalCluster:
    """Give a cluster whose servers run, and of whose services none does."""
    item = new_cluster(partitions=2, agents=2, slots=1, options={"agent": ("--cold",)})
    for server in (item.broker, item.clickhouse, item.objects):
        server.start()
    return item


def follow(step: str, environment: Mapping[str, str], folder: Path) -> str:
    """Run the commands that the guide gives for a step, as a user in a shell."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("RUNG_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-u", "-x", "-c", STEPS[step]],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**inherited, **environment, "PATH": path, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def curves(user: User, experiment: str) -> list[dict[str, Any]]:
    """Return the curves of an experiment, of each metric by trial."""
    return [
        user.get(f"/experiments/{experiment}/metrics?kind={kind}&name={name}")["curves"]
        for kind, name in (("training", "noise"), ("validation", "loss"))
    ]


def points(user: User, experiment: str) -> int:
    """Return how many points they have."""
    return sum(len(curve) for metric in curves(user, experiment) for curve in metric.values())


def search(name: str, length: int, **more: object) -> dict[str, Any]:
    """Return an experiment file: four trials of the curve."""
    return config(name, {"name": "grid", "max_length": {"batches": length}}, **more)


def held(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a file, and what of an experiment keeps trials from their end while it is there."""
    hold = folder / "hold"
    hold.touch()
    return hold, {"environment": {"environment_variables": [f"HOLD={hold}"]}}


def test_the_guide_names_what_it_needs() -> None:
    """Its steps are those that are tested here."""
    assert list(STEPS) == ["settings", "machine", "cluster", "users"]


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_moving_up(machine: Installation, cluster: LocalCluster, tmp_path: Path) -> None:
    """Results, curves and checkpoints are the same after it, and what had not ended goes on."""
    ended = machine.submit(search("ended", 6))
    before = machine.result(ended)
    wait_for(lambda: points(machine, ended) == 2 * 4 * 6, "its curves are there")
    drawn = curves(machine, ended)
    hold, holding = held(tmp_path)
    paused = machine.submit(search("paused", 30, **holding))
    wait_for(lambda: machine.validations(paused) > 5, "some of it was trained")
    machine.rung("pause", paused)
    wait_for(lambda: machine.get(f"/experiments/{paused}")["state"] == "paused", "it paused")
    running = machine.submit(search("running", 30, **holding))
    wait_for(lambda: machine.validations(running) > 5, "some of it was trained")

    environment = {**cluster.environment, "RUNG_DATA": str(machine.folder)}
    environment["RUNG_TOKEN"] = (machine.folder / "token").read_text().strip()
    named = set(re.findall(r"(\w+)=", STEPS["settings"]))
    assert named <= set(environment), "a setting that the test does not give"
    follow("machine", environment, tmp_path)
    told = follow("cluster", environment, tmp_path)
    assert "decisions are the same" in told
    assert "were there already" in told
    start(cluster)
    mover = User(tmp_path, environment)
    alone = str(tmp_path / "alone.jsonl")
    mover.rung("ledger", "export", ended, "--output", alone, "--data", str(machine.folder))
    target = ("--ledger", environment["RUNG_LEDGER"])
    again = mover.rung("ledger", "import", alone, *target, check=False)
    assert "services use this ledger (gateway on" in again.stderr, again

    del environment["RUNG_DATA"]
    environment["RUNG_TOKEN"] = cluster.token
    user = User(tmp_path, environment)
    assert user.result(ended) == before
    wait_for(lambda: curves(user, ended) == drawn, "its curves are there again")
    fetched = tmp_path / "best"
    user.rung("download", ended, "--output", str(fetched))
    assert json.loads((fetched / "state.json").read_text())[0] == before["best"][2]
    trained = user.validations(paused)
    assert trained > 5
    assert user.get(f"/experiments/{paused}")["state"] == "paused"
    hold.unlink()
    assert user.ended(running)["state"] == "completed"
    user.rung("resume", paused)
    assert user.ended(paused)["state"] == "completed"
    for experiment in (ended, paused, running):
        assert restarts(user, experiment) == 0
        user.rung("audit", experiment)
    told = follow("users", environment, tmp_path)
    assert "Every segment and every chain is whole." in told
    assert "decisions are the same" in told


def start(cluster: LocalCluster) -> None:
    """Start the services and agents of a cluster, and wait until they are ready."""
    for process in (*cluster.services, *cluster.agents):
        process.start()
    for process in (*cluster.services, *cluster.agents):
        process.until_ready()


def restarts(user: User, experiment: str) -> int:
    """Return how often a trial was started again because of a fault of its own."""
    shown = user.get(f"/experiments/{experiment}")
    return sum(trial["restarts"] for trial in shown["trials"])
