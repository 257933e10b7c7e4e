"""Clusters for tests, taken down whatever the test did."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servers import kafka
from servers.cluster import LocalCluster
from servers.kafka import KafkaBroker
from servers.network import Network, available
from support.ledger.brokers import Ground
from support.user import User

NewCluster = Callable[..., LocalCluster]


def need_kafka() -> None:
    """Skip the test where this machine cannot run Apache Kafka, and say what it lacks."""
    if lacking := kafka.missing():
        pytest.skip(lacking)


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[NewCluster]:
    """Return what makes a cluster, in the test's folder; it is started by the test."""
    made: list[LocalCluster] = []

    def make(**options: Any) -> LocalCluster:
        need_kafka()
        made.append(LocalCluster(tmp_path / f"cluster-{len(made)}", **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.kill()


@pytest.fixture
def cluster(new_cluster: NewCluster) -> LocalCluster:
    """Return a small cluster that runs."""
    item = new_cluster(partitions=2, agents=2, slots=1)
    item.start()
    return item


@pytest.fixture
def ground(shared_kafka: KafkaBroker, tmp_path: Path) -> Ground:
    """Return a new ledger."""
    return Ground(shared_kafka.url, tmp_path / "objects")


@pytest.fixture
def network() -> Iterator[Network | None]:
    """Return a network with namespaces, None where this machine does not allow any."""
    item = Network() if available() else None
    yield item
    if item is not None:
        item.close()


def user_of(cluster: LocalCluster) -> User:
    """Return a user of a cluster."""
    return User(cluster.folder, cluster.environment)
