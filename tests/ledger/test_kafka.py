"""The ledger on a Kafka cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rung.ledger import Ledger
from servers.kafka import KafkaBroker
from support.ledger.brokers import Ground
from support.ledger.conformance import DurableConformance, DurableCutConformance, Opener

pytestmark = pytest.mark.ledger


class TestKafkaLedger(DurableConformance):
    """Holds the Kafka adapter to what all adapters do, on every kind of broker there is."""

    @pytest.fixture
    async def ledger(self, ground: Ground) -> AsyncIterator[Ledger]:
        """Give an empty ledger."""
        ledger = await ground.open()
        yield ledger
        await ledger.close()

    @pytest.fixture
    def opener(self, ground: Ground) -> Opener:
        """Open the ledger of this test once more."""
        return ground.open


class TestApacheKafkaIsCut(DurableCutConformance):
    """Apache Kafka removes records on demand; Tansu closes the connection instead."""

    @pytest.fixture
    def place(self, shared_kafka: KafkaBroker, tmp_path: Path) -> Ground:
        """Give a new ledger."""
        return Ground(shared_kafka.url, tmp_path / "objects")

    @pytest.fixture
    async def ledger(self, place: Ground) -> AsyncIterator[Ledger]:
        """Give an empty ledger with four partitions."""
        ledger = await place.open()
        yield ledger
        await ledger.close()

    @pytest.fixture
    def opener(self, place: Ground) -> Opener:
        """Open the ledger of this test once more."""
        return place.open
