"""What a storm plans: whom it hits, and how often."""

from collections import Counter
from pathlib import Path

import pytest

from cluster.conftest import NewCluster, need_kafka
from cluster.storm import Fault, Storm
from cluster.test_faults import FAULTS, REPLICAS
from servers.cluster import LocalCluster
from servers.kafka import KafkaCluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def kafka(tmp_path: Path) -> KafkaCluster:
    """Return three brokers that were not started."""
    need_kafka()
    return KafkaCluster(tmp_path / "kafka")


@pytest.fixture
def cluster(kafka: KafkaCluster, new_cluster: NewCluster) -> LocalCluster:
    """Return a cluster on them of which nothing was started."""
    return new_cluster(broker=kafka, replicas=REPLICAS)


@pytest.mark.parametrize("seed", range(20))
def test_no_part_is_spared(cluster: LocalCluster, kafka: KafkaCluster, seed: int) -> None:
    """Whatever the dice say, each replica, broker, agent and store is killed, each in its turn."""
    plan = Storm(cluster, kafka.brokers, seed).plan(FAULTS)
    kills = Counter(fault.part for fault in plan if fault.kind == "kill")
    replicas = {f"{name}-{number}" for name in REPLICAS for number in (1, 2)}
    others = [{"broker-1", "broker-2", "broker-3"}, {"agent-1", "agent-2"}]
    assert len(plan) == FAULTS
    assert set(kills) == replicas.union(*others, {"clickhouse", "objects"})
    for alike in (replicas, *others):
        counts = [kills[part] for part in alike]
        assert max(counts) - min(counts) <= 1


def test_what_takes_long(cluster: LocalCluster, kafka: KafkaCluster) -> None:
    """Each agent is cut off, two brokers and a replica of each service are stopped."""
    plan = Storm(cluster, kafka.brokers, seed=1).plan(FAULTS)
    assert {fault.part for fault in plan if fault.kind == "cut"} == {"agent-1", "agent-2"}
    paused = Counter(part.partition("-")[0] for kind, part in plan if kind == "pause")
    services = Counter(name.partition("-")[0] for name in REPLICAS)
    assert paused == {**services, "broker": 2}


def test_the_seed_repeats_it(cluster: LocalCluster, kafka: KafkaCluster) -> None:
    """One seed is one plan."""
    plans = [Storm(cluster, kafka.brokers, seed).plan(FAULTS) for seed in (3, 3, 4)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


def test_it_goes_on_until_it_is_enough(
    cluster: LocalCluster, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all that was planned come kills, as long as they are wanted."""
    storm, same = (Storm(cluster, kafka.brokers, seed=1) for _ in range(2))
    inflicted: list[Fault] = []
    monkeypatch.setattr(storm, "_inflict", inflicted.append)
    wanted = iter([True] * 7 + [False])
    storm.rage(FAULTS, pause_s=0, enough=lambda: not next(wanted))
    planned = Counter(fault.kind for fault in same.plan(FAULTS))
    assert Counter(fault.kind for fault in inflicted) == planned + Counter(kill=7)


def test_who_was_not_killed_is_told(cluster: LocalCluster, kafka: KafkaCluster) -> None:
    """Before anything happened that are all; a pause does not count."""
    storm = Storm(cluster, kafka.brokers, seed=1)
    before = len(storm.spared)
    storm.count[Fault("pause", "searcher-1")] += 1
    storm.count[Fault("kill", "searcher-2")] += 1
    assert len(storm.spared) == before - 1
    assert "searcher-1" in storm.spared
