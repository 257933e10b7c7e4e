"""The ledger in memory."""

from collections.abc import AsyncIterator

import pytest

from rung.ledger import Ledger, MemoryLedger
from support.ledger.conformance import (
    CutConformance,
    TransactionalConformance,
    TrimmingConformance,
    draft,
)


class TestMemoryLedger(TrimmingConformance, TransactionalConformance, CutConformance):
    """The ledger in memory conforms to the port."""

    @pytest.fixture
    async def ledger(self) -> AsyncIterator[Ledger]:
        """Give an empty ledger."""
        ledger = MemoryLedger()
        yield ledger
        await ledger.close()


async def test_same_history_twice() -> None:
    """A simulation may give the ledger its id, so that two runs are the same."""
    one, two = (MemoryLedger(partitions=2, ledger_id="sim") for _ in range(2))
    assert one.id == two.id == "sim"
    assert await one.append([draft("a")]) == await two.append([draft("a")])
    assert one.partitions("logs") == 2
