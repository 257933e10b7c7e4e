"""`deploy/compose`: the broker's settings, on a real broker.

The image turns variables into properties: `KAFKA_LOG_DIRS` is `log.dirs`. What differs here is
where it listens and where its data lie.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from deploy.place import DEPLOY
from rung.ledger.kafka.settings import KafkaSettings
from rung.ledger.kafka.topics import check, create
from servers.kafka import JARS, missing
from servers.process import ServerProcess, answers, free_port

_JAVA: Final = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-cp",
    f"{JARS}/*",
)

pytestmark = pytest.mark.cluster


def _settings() -> tuple[str, dict[str, str]]:
    """Return the cluster's id and the broker's properties, as the compose file has them."""
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    variables: dict[str, object] = dict(compose["services"]["kafka"]["environment"])
    cluster = str(variables.pop("CLUSTER_ID")).partition(":-")[2].rstrip("}")
    names = {name: name.removeprefix("KAFKA_").lower().replace("_", ".") for name in variables}
    return cluster, {names[name]: str(value) for name, value in variables.items()}


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Return where a broker with the settings of the compose file listens."""
    if lacking := missing():
        pytest.skip(lacking)
    cluster, properties = _settings()
    port, controller = free_port(), free_port()
    for name, value in properties.items():
        moved = value.replace("9092", str(port)).replace("9093", str(controller))
        properties[name] = moved.replace("kafka:", "127.0.0.1:")
    properties["log.dirs"] = str(tmp_path / "data")
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    storage = [*_JAVA, "kafka.tools.StorageTool", "format"]
    subprocess.run(
        [*storage, "--cluster-id", cluster, "--config", file], check=True, capture_output=True
    )
    broker = ServerProcess([*_JAVA, "kafka.Kafka", str(file)], log=tmp_path / "kafka.log")
    broker.start(lambda: answers(port))
    yield port
    broker.stop()


async def test_a_ledger_fits_on_the_broker_of_the_compose_file(port: int) -> None:
    """One broker is enough for the topics, and `rung cluster init` finds nothing amiss."""
    url = f"kafka://127.0.0.1:{port}/rung"

    first = await create(url, KafkaSettings())
    again = await create(url, KafkaSettings())

    assert "rung.experiments" in first.made
    assert (again.id, again.made) == (first.id, [])
    assert await check(url, KafkaSettings()) == []
