"""Trainings outlive a cluster: services, agents and upgrades of either come and go beside them.

`RUNG_OUTLIVE_SECONDS` says for how long, and `RUNG_OUTLIVE_SEED` repeats the order of the faults;
`make soak` takes ten minutes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from cluster.conftest import NewCluster, need_kafka, user_of
from rung.storage import open_store
from servers.service import Service
from support.trainings import SECONDS, Record, Trainings, disturb
from support.upgrades import Upgrades

REPLICAS = {"searcher": 1, "scheduler": 1, "checkpoint-gc": 1, "metrics": 1, "gateway": 1}


def _kill(processes: Sequence[Service]) -> None:
    """Kill processes with SIGKILL, and start them again."""
    for process in processes:
        process.kill()
    for process in processes:
        process.start()


def _stop(processes: Sequence[Service]) -> None:
    """Stop processes, as for an upgrade, and start them again."""
    for process in processes:
        process.stop()
    for process in processes:
        process.start()


@pytest.mark.cluster
@pytest.mark.timeout(SECONDS + 900)
def test_trainings_outlive_a_cluster(
    new_cluster: NewCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trial restarts, no step is repeated, no report is lost or doubled."""
    need_kafka()
    upgrades = Upgrades(tmp_path / "releases")
    cluster = new_cluster(
        replicas=REPLICAS,
        agents=2,
        slots=2,
        partitions=2,
        options={
            "agent": ("--keep-trials", "--unattended", "600"),
            "scheduler": ("--agent-timeout", "60"),
        },
        environment=upgrades.environment,
    )
    cluster.start()
    for name, value in cluster.environment.items():
        if name != "PYTHONPATH":
            monkeypatch.setenv(name, value)
    record = Record(cluster.broker.url, open_store(cluster.objects.url))
    trainings = Trainings(user_of(cluster), record, tmp_path)
    trainings.train("ddp.py", slots=2)
    trainings.train("plain.py")
    trainings.train("with_keras.py")

    def upgrade(processes: Sequence[Service]) -> None:
        upgrades.upgrade()
        _stop(processes)

    faults: dict[str, Callable[[], None]] = {
        "kill the services": partial(_kill, cluster.services),
        "upgrade the services": partial(upgrade, cluster.services),
        "kill all": partial(_kill, [*cluster.services, *cluster.agents]),
        "upgrade all": partial(upgrade, [*cluster.services, *cluster.agents]),
    }
    for service in cluster.services:
        faults[f"kill {service.name}"] = partial(_kill, [service])
    for number, agent in enumerate(cluster.agents, 1):
        faults[f"kill agent-{number}"] = partial(_kill, [agent])
        faults[f"stop agent-{number}"] = partial(_stop, [agent])
        faults[f"upgrade agent-{number}"] = partial(upgrade, [agent])
    try:
        disturb(trainings, faults, record)
    finally:
        record.close()
