"""A real chDB folder for each test; chDB lets a process have one open at a time."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rung.metrics import SeriesStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SeriesStore]:
    """An empty store of the ledger `ledger-1`."""
    opened = SeriesStore(tmp_path / "series", ledger_id="ledger-1")
    yield opened
    await opened.close()
