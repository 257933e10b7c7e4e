"""The ledger on a Kafka cluster."""

from collections.abc import AsyncIterator

import pytest

from ledger.brokers import Ground
from ledger.conformance import DurableConformance, Opener
from rung.ledger import Ledger

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
