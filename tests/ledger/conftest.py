"""Brokers for the tests of the ledger: one process of each kind for a whole run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.kafka import KafkaBroker
from support.ledger.brokers import KAFKA, Broker, Ground, reasons, started, usable


def pytest_report_header() -> list[str]:
    """Say which brokers are used, and which are not."""
    return [
        f"ledger on {name}: " + (f"left out, {lacking}" if lacking else "tested")
        for name, lacking in reasons().items()
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it at the end too: a run of all tests reads this file too late for its header."""
    for line in pytest_report_header():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session", params=usable())
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """Give a broker of each kind, the same one to all tests; they leave it running."""
    if request.param == KAFKA:
        yield request.getfixturevalue("shared_kafka")
    else:
        yield from started(request.param, tmp_path_factory.mktemp("broker"))


@pytest.fixture
def ground(broker: Broker, tmp_path: Path) -> Ground:
    """Give a new ledger on each kind of broker."""
    return Ground(broker.url, tmp_path / "objects")


@pytest.fixture(scope="session")
def shared_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Give an Apache Kafka, the same one to all tests; they leave it running."""
    if lacking := reasons()[KAFKA]:
        pytest.skip(lacking)
    for broker in started(KAFKA, tmp_path_factory.mktemp("kafka")):
        assert isinstance(broker, KafkaBroker)
        yield broker
