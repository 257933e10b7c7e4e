"""The ledger in one SQLite file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ledger.conformance import DurableConformance, Opener
from rung.ledger import Ledger, SqliteLedger


@pytest.mark.ledger
class TestSqliteLedger(DurableConformance):
    """Holds the SQLite adapter to what all adapters do."""

    @pytest.fixture
    async def ledger(self, tmp_path: Path) -> AsyncIterator[Ledger]:
        """Give an empty ledger."""
        ledger = await SqliteLedger.open(tmp_path / "ledger")
        yield ledger
        await ledger.close()

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        """Open the ledger of this test once more."""
        return lambda: SqliteLedger.open(tmp_path / "ledger")
