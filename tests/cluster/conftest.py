"""Clusters for tests, taken down whatever the test did."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.user import User
from servers.cluster import LocalCluster
from servers.kafka import KafkaCluster
from servers.network import Network, available
from servers.tansu import Tansu

NewCluster = Callable[..., LocalCluster]


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[NewCluster]:
    """Return what makes a cluster, in the test's folder; it is started by the test."""
    made: list[LocalCluster] = []

    def make(**options: Any) -> LocalCluster:
        made.append(LocalCluster(tmp_path / f"cluster-{len(made)}", **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.kill()


@pytest.fixture(params=["tansu", "kafka"])
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, new_cluster: NewCluster
) -> LocalCluster:
    """Return a small cluster that runs, on either broker."""
    broker = (
        Tansu(tmp_path / "tansu")
        if request.param == "tansu"
        else KafkaCluster(tmp_path / "kafka", brokers=1)
    )
    item = new_cluster(broker=broker, partitions=2, agents=2, slots=1)
    item.start()
    return item


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
