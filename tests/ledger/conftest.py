"""A ledger on Apache Kafka for each test that wants one."""

from pathlib import Path

import pytest

from servers import kafka
from servers.kafka import KafkaBroker
from support.ledger.brokers import Ground


def pytest_report_header() -> str:
    """Say whether the ledger on Kafka is tested."""
    lacking = kafka.missing()
    return "ledger on Apache Kafka: " + (f"left out, {lacking}" if lacking else "tested")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it at the end too: a run of all tests reads this file too late for its header."""
    terminalreporter.write_line(pytest_report_header())


@pytest.fixture
def ground(shared_kafka: KafkaBroker, tmp_path: Path) -> Ground:
    """Give a new ledger."""
    return Ground(shared_kafka.url, tmp_path / "objects")
