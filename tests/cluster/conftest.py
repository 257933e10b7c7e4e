"""Clusters for tests, taken down whatever the test did."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servers.cluster import Broker, LocalCluster
from servers.kafka import KafkaCluster
from servers.network import Network, available
from servers.tansu import Tansu
from support.ledger.brokers import KAFKA, TANSU, reasons
from support.user import User

NewCluster = Callable[..., LocalCluster]


def need(broker: str) -> None:
    """Skip the test where this machine cannot run a broker, and say what it lacks."""
    if lacking := reasons()[broker]:
        pytest.skip(lacking)


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[NewCluster]:
    """Return what makes a cluster, in the test's folder; it is started by the test.

    On Apache Kafka if no broker is given.
    """
    made: list[LocalCluster] = []

    def make(**options: Any) -> LocalCluster:
        if "broker" not in options:
            need(KAFKA)
        made.append(LocalCluster(tmp_path / f"cluster-{len(made)}", **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.kill()


@pytest.fixture(params=[TANSU, KAFKA], ids=["tansu", "kafka"])
def one_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Broker:
    """Return a broker of each kind, not started."""
    need(request.param)
    if request.param == TANSU:
        return Tansu(tmp_path / "tansu")
    return KafkaCluster(tmp_path / "kafka", brokers=1)


@pytest.fixture
def cluster(one_broker: Broker, new_cluster: NewCluster) -> LocalCluster:
    """Return a small cluster that runs, on either broker."""
    item = new_cluster(broker=one_broker, partitions=2, agents=2, slots=1)
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
