"""`rung cluster init` and `status` on a broker, while services come and go."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rung.events import TOPICS
from rung.ledger.kafka import KafkaLedger
from servers.kafka import KafkaBroker
from servers.process import ServerProcess
from support.instant_trials import Trials
from support.searcher.scenario import config

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


class Operator:
    """Somebody at a terminal."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.environment = {
            "RUNG_LEDGER": url,
            "RUNG_OBJECTS": (folder / "objects").as_uri(),
            "RUNG_KAFKA_SESSION_TIMEOUT_S": "6",
        }

    def cluster(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `rung cluster …`."""
        return subprocess.run(
            [sys.executable, "-m", "rung.cli", "cluster", *arguments],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        """Return what `rung cluster status --json` says."""
        result = self.cluster("status", "--json")
        found: dict[str, Any] = json.loads(result.stdout)
        assert result.returncode == (1 if found["problems"] else 0), result.stderr
        return found


@pytest.fixture
def operator(shared_kafka: KafkaBroker, tmp_path: Path) -> Operator:
    """Return somebody who looks after a new prefix on the broker."""
    return Operator(f"{shared_kafka.url}/{tmp_path.name}", tmp_path)


def test_init_says_what_it_made_and_what_differs(operator: Operator) -> None:
    """A dry run changes nothing, a second run makes nothing, another number is refused."""
    dry = operator.cluster("init", "--dry-run")
    assert dry.returncode == 1
    assert "topic is missing" in dry.stdout
    first = operator.cluster("init", "--partitions", "2", "--json")
    assert first.returncode == 0, first.stderr
    assert len(json.loads(first.stdout)["ledger"]["made"]) == len(TOPICS) + 1
    again = operator.cluster("init")
    assert (again.returncode, "made: nothing" in again.stdout) == (0, True), again.stderr
    well = operator.cluster("init", "--dry-run")
    assert (well.returncode, "as they should be" in well.stdout) == (0, True), well.stdout
    other = operator.cluster("init", "--partitions", "3")
    assert other.returncode == 6
    assert "2 partitions per topic, not 3" in other.stderr
    kept = operator.cluster("init", "--dry-run", "--retention", "metrics=9d")
    assert "retention.ms is 2592000000, should be 777600000" in kept.stdout
    assert kept.returncode == 1


def test_init_fails_where_decisions_would_be_lost(operator: Operator) -> None:
    """A topic that must last and would not is wrong, unless whoever asks wants it so."""
    briefly = ["init", "--partitions", "1", "--retention", "pools=1h"]
    assert operator.cluster(*briefly).returncode == 0
    plain = operator.cluster("init")
    assert "pools: retention.ms is 3600000, should be -1" in plain.stdout
    assert (plain.returncode, "as they should be" in plain.stdout) == (1, False)
    assert "wrong: " in plain.stdout


async def test_status_tells_what_is_due(operator: Operator, tmp_path: Path) -> None:
    """Without a searcher decisions are due; with one, nothing is, and its partitions are told."""
    assert operator.cluster("init", "--partitions", "2").returncode == 0
    ledger = await KafkaLedger.open(operator.url)
    await Trials(ledger).submit("k3v9x2ab", config("single"))
    await ledger.close()
    status = operator.status()
    due = {item["name"]: item["pending"] for item in status["deciders"]}
    assert due == {"directory": 0, "searcher": 3, "scheduler": 0, "checkpoint-gc": 0}
    assert "searcher: 3 decisions are due" in status["problems"]
    assert "searcher: no replica runs" in status["problems"]
    assert status["experiments"] == {"active": 1}
    assert [item["answers"] for item in status["brokers"]] == [True]
    assert status["seals"]["unsealed"] == status["seals"]["records"] == 1
    assert status["unfinished_imports"] == []

    searcher = ServerProcess(
        [sys.executable, "-m", "rung.cli", "service", "searcher"],
        log=tmp_path / "searcher.log",
        environment=operator.environment,
    )
    searcher.start()
    try:
        while "decisions are due" in str(operator.status()["problems"]):
            assert searcher.running, searcher.said()
        status = operator.status()  # the one before may have seen it come
    finally:
        searcher.kill()
    assert "searcher: no replica runs" not in status["problems"]
    (replica,) = status["replicas"]["searcher"]
    expected = {name: [0, 1] for name in ("experiments", "placements", "searches")}
    assert replica["partitions"] == expected
    lag = {item["name"]: item["lag"] for item in status["consumers"]}
    assert lag["scheduler-intake"] == 3
    still = "scheduler-intake: stands still, 3 records behind on searches"
    assert still in status["problems"]
    assert "2 active" not in (text := operator.cluster("status").stdout)
    assert "1 active" in text
    assert text.startswith("WRONG: ")


def test_an_object_store_that_is_away_is_told_and_not_waited_for(operator: Operator) -> None:
    """The rest is told all the same, from the ledger's beginning, and --json stays JSON."""
    operator.cluster("init", "--partitions", "4")
    operator.environment |= {
        "RUNG_OBJECTS": "s3://rung",
        "RUNG_S3_ENDPOINT": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "rung",
        "AWS_SECRET_ACCESS_KEY": "rung-secret",
    }
    found = operator.status()

    assert found["problems"][-1].startswith("object store s3://rung: ")
    assert found["topics"]
