"""The ledger in one SQLite file."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ledger.conformance import (
    DurableConformance,
    DurableCutConformance,
    Opener,
    TransactionalConformance,
    TrimmingConformance,
)
from rung.events import TOPICS, partition_of, topic
from rung.ledger import Draft, Ledger, SqliteLedger


@pytest.mark.ledger
class TestSqliteLedger(
    DurableConformance, TrimmingConformance, TransactionalConformance, DurableCutConformance
):
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


async def test_the_space_of_trimmed_records_is_used_again(tmp_path: Path) -> None:
    """A file whose oldest records are trimmed does not grow; others write meanwhile."""
    ledger = await SqliteLedger.open(tmp_path, partitions=1)
    lines = [Draft(topic.LOGS, "k", b"x" * 50_000)] * 400

    async def append_meanwhile(trimming: asyncio.Task[None]) -> int:
        count = 0
        while not trimming.done():
            await ledger.append([Draft(topic.EXPERIMENTS, "k", b"{}")])
            count += 1
        return count

    await ledger.append(lines)
    sizes = []
    for _ in range(3):
        end = (await ledger.append(lines))[-1] + 1
        trimming = asyncio.create_task(ledger.trim(topic.LOGS, 0, end - 400))
        assert await append_meanwhile(trimming) >= 3
        await trimming
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
            sizes.append(database.execute("PRAGMA page_count").fetchone()[0])
    await ledger.close()
    assert sizes[-1] < 1.2 * sizes[0]
