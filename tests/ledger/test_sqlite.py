"""The ledger in one SQLite file."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ledger.conformance import (
    DurableConformance,
    Opener,
    TransactionalConformance,
    TrimmingConformance,
)
from rung.events import TOPICS, partition_of
from rung.ledger import Draft, Ledger, SqliteLedger


@pytest.mark.ledger
class TestSqliteLedger(DurableConformance, TrimmingConformance, TransactionalConformance):
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


@pytest.mark.ledger
async def test_people_can_read_it(tmp_path: Path) -> None:
    """Any SQLite tool shows the events, in a view that names topic, partition and position."""
    ledger = await SqliteLedger.open(tmp_path)
    drafts = [Draft(name, "k", b'{"n": %d}' % n) for n in range(2) for name in TOPICS]
    await ledger.append(drafts)
    await ledger.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        rows = database.execute("SELECT * FROM events ORDER BY topic, position").fetchall()
    at = partition_of("k", 4)
    assert rows == [
        (name, at, n, "k", f'{{"n": {n}}}') for name in sorted(TOPICS) for n in range(2)
    ]


@pytest.mark.ledger
async def test_partitions_are_the_files(tmp_path: Path) -> None:
    """A ledger keeps the number of partitions that it was made with."""
    one = await SqliteLedger.open(tmp_path, partitions=7)
    two = await SqliteLedger.open(tmp_path, partitions=2)
    assert [one.partitions(name) for name in TOPICS] == [7] * len(TOPICS)
    assert two.partitions("logs") == 7
    await one.close()
    await two.close()


@pytest.mark.ledger
async def test_an_older_file_gets_new_topics(tmp_path: Path) -> None:
    """A topic that a file does not know yet is added when it is opened."""
    await (await SqliteLedger.open(tmp_path)).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        database.execute("DELETE FROM topics WHERE name = 'logs'")
        database.commit()
    ledger = await SqliteLedger.open(tmp_path)
    assert await ledger.append([Draft("logs", "k", b"")]) == [0]
    assert await ledger.append([Draft("metrics", "k", b"")]) == [0]
    await ledger.close()
