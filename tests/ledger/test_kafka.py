"""The ledger on a Kafka cluster."""

from collections.abc import AsyncIterator

import pytest

from rung.ledger import Ledger
from support.ledger.brokers import Ground
from support.ledger.conformance import DurableConformance, DurableCutConformance, Opener

pytestmark = pytest.mark.ledger


class TestKafkaLedger(DurableConformance, DurableCutConformance):
    """Holds the Kafka adapter to what all adapters do."""

    @pytest.fixture
    async def ledger(self, ground: Ground) -> AsyncIterator[Ledger]:
        """Give an empty ledger with four partitions."""
        ledger = await ground.open()
        yield ledger
        await ledger.close()

    @pytest.fixture
    def opener(self, ground: Ground) -> Opener:
        """Open the ledger of this test once more."""
        return ground.open
