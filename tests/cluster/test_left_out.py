"""Where this machine cannot run Apache Kafka, tests of the cluster are left out, and say why."""

from pathlib import Path

import pytest

from cluster.conftest import NewCluster, need_kafka
from servers import kafka


@pytest.fixture(autouse=True)
def _no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "JARS", tmp_path / "none")


def test_a_cluster_on_kafka_is_skipped(new_cluster: NewCluster) -> None:
    """Who asks for a cluster is told what is missing; nothing fails."""
    with pytest.raises(pytest.skip.Exception, match=kafka.missing()):
        new_cluster(agents=1)


def test_a_broker_is_skipped() -> None:
    """So is who makes a broker."""
    with pytest.raises(pytest.skip.Exception, match=kafka.missing()):
        need_kafka()
