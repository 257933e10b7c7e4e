"""The ledger on a Kafka cluster."""

import asyncio
from collections.abc import AsyncIterator

import psutil
import pytest

from rung.events import topic
from rung.ledger import Ledger
from servers.kafka import KafkaBroker
from support.ledger.brokers import Ground
from support.ledger.conformance import (
    DurableConformance,
    DurableCutConformance,
    Opener,
    draft,
    take,
)

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


async def test_closed_while_a_follower_starts(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """No connection is left open, at whatever moment that is."""
    for moment in range(20):
        ledger = await ground.open()
        await ledger.append([draft("k")])
        following = asyncio.create_task(take(ledger.follow(topic.EXPERIMENTS, 0, 0), 1))
        for _ in range(moment):
            await asyncio.sleep(0.001)  # a moment of its start
        await ledger.close()
        await asyncio.gather(following, return_exceptions=True)
        ends = [it.raddr for it in psutil.Process().net_connections("tcp") if it.raddr]
        assert [end for end in ends if end.port == shared_kafka.port] == []
