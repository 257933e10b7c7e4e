"""A cluster under faults, while it searches: nothing acknowledged is lost or doubled."""

import asyncio
import itertools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster import proof
from cluster.conftest import NewCluster, need_kafka
from cluster.storm import Storm
from rung.ledger.factory import open_ledger
from rung.storage import ObjectStore, open_store
from servers.cluster import LocalCluster
from servers.kafka import KafkaCluster
from servers.network import Network
from support.user import User, config, wait_for

FAULTS = int(os.environ.get("RUNG_FAULTS", "30"))
"""More than parts that are killed and long faults; `make soak` sets 500."""
PAUSE_S = 1.5
SEED = int(os.environ.get("RUNG_FAULTS_SEED", "11"))
REPLICAS = {"searcher": 2, "scheduler": 2, "checkpoint-gc": 2, "metrics": 2, "gateway": 2}
METHODS: list[dict[str, Any]] = [
    {"name": "hyperband", "max_time": 9, "divisor": 3, "time_metric": "batches"},
    {"name": "grid", "max_length": {"batches": 15}, "max_concurrent_trials": 3},
    {
        "name": "adaptive_asha",
        "max_time": 27,
        "divisor": 3,
        "time_metric": "batches",
        "max_trials": 8,
    },
    {"name": "random", "max_length": {"batches": 20}, "max_trials": 4},
]


class Searches:
    """Submits searches, each to the next gateway, so that some run at any time, until `stop`."""

    def __init__(self, users: Sequence[User]) -> None:
        self.submitted: list[str] = []
        self._users = itertools.cycle(users)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._submit)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Submit no more."""
        self._over.set()
        self._thread.join()

    def _submit(self) -> None:
        while not self._over.wait(1.0):
            if self._open() < 2:
                number = len(self.submitted)
                searcher = METHODS[number % len(METHODS)]
                item = config(
                    f"storm-{number}", searcher, reproducibility={"experiment_seed": number}
                )
                found = self._try(item)
                self.submitted += [found] if found else []

    def _try(self, item: dict[str, Any]) -> str | None:
        try:
            return next(self._users).submit(item)
        except AssertionError:  # the gateway is being broken just now
            return None

    def _open(self) -> int:
        user = next(self._users)
        shown = [user.get_or_none(f"/experiments/{name}") for name in self.submitted[-4:]]
        return sum(1 for each in shown if each is None or not each["ended_at"])


async def _prove(cluster: LocalCluster, objects: ObjectStore) -> None:
    ledger = await open_ledger(cluster.environment["RUNG_LEDGER"], objects)
    try:
        await proof.no_difference(ledger)
        assert await proof.runs_do_not_overlap(ledger)
        assert await proof.reports_are_stored_once(ledger, cluster.clickhouse)
    finally:
        await ledger.close()


@pytest.mark.cluster
@pytest.mark.timeout(15 * max(FAULTS, 100))
def test_searches_under_faults(
    new_cluster: NewCluster,
    network: Network | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every search ends and audits; every report is stored once; what is kept can be loaded."""
    need_kafka()
    host = network.host if network else "127.0.0.1"
    kafka = KafkaCluster(tmp_path / "kafka", brokers=3, host=host)
    cluster = new_cluster(
        broker=kafka,
        replicas=REPLICAS,
        agents=2,
        slots=2,
        partitions=4,
        network=network,
        options={"scheduler": ("--agent-timeout", "15"), "agent": ("--cold",)},
    )
    cluster.start()
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    users = [
        User(cluster.folder, {**cluster.environment, "RUNG_URL": url}) for url in cluster.urls
    ]
    objects = open_store(cluster.environment["RUNG_OBJECTS"])
    searches, storm = Searches(users), Storm(cluster, kafka.brokers, SEED)
    searches.start()
    try:
        wait_for(lambda: searches.submitted, "a first search was submitted")
        # Two are open at a time: where a third was submitted, one ended under the faults.
        storm.rage(FAULTS, pause_s=PAUSE_S, enough=lambda: len(searches.submitted) > 2)
    finally:
        searches.stop()

    storm.await_ready()
    assert storm.count.total() >= FAULTS
    assert storm.spared == []
    user, *_ = users
    experiments = {item["id"] for item in user.get("/experiments?limit=1000")["items"]}
    assert experiments >= set(searches.submitted)
    for experiment in sorted(experiments):
        user.ended(experiment)
        proof.curves_are_whole(user, experiment)
        assert proof.nothing_reported_is_missing(user, cluster.clickhouse, experiment)
        assert proof.kept_checkpoints_are_whole(user, objects, experiment)
    asyncio.run(_prove(cluster, objects))
