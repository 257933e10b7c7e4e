"""The ledger in one SQLite file."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rung.events import TOPICS, LedgerTrimmed, partition_of, topic
from rung.ledger import Draft, Ledger, SqliteLedger
from rung.ledger.sqlite.reader import Reader
from support.ledger.conformance import (
    DurableConformance,
    DurableCutConformance,
    LedgerConformance,
    Opener,
    TransactionalConformance,
    TrimmingConformance,
    take,
)


@pytest.mark.ledger
class TestSqliteLedger(
    DurableConformance, TrimmingConformance, TransactionalConformance, DurableCutConformance
):
    """The SQLite adapter conforms to the port."""

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
class TestStagedSqliteLedger(LedgerConformance):
    """The staged view of the ledger conforms to the port."""

    @pytest.fixture
    async def ledger(self, tmp_path: Path) -> AsyncIterator[Ledger]:
        """Give an empty ledger."""
        ledger = await SqliteLedger.open(tmp_path / "ledger")
        yield ledger.staged()
        await ledger.close()


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


async def test_a_stream_is_read_once_however_many_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process appends is read once for a hundred followers."""
    reads = 0
    run = Reader.run

    async def counted(self: Reader, query: Callable[[sqlite3.Connection], object]) -> object:
        nonlocal reads
        reads += 1
        return await run(self, query)

    one, two = await SqliteLedger.open(tmp_path), await SqliteLedger.open(tmp_path)
    at = partition_of("k", 4)
    followers = [one.follow("logs", at, 0) for _ in range(100)]
    await one.append([Draft("logs", "k", b"first")])
    for following in followers:
        await anext(following)
    monkeypatch.setattr(Reader, "run", counted)
    for number in range(10):
        taking = [asyncio.create_task(take(following, 1)) for following in followers]
        await two.append([Draft("logs", "k", b"%d" % number)])
        assert {records[0].value for records in await asyncio.gather(*taking)} == {b"%d" % number}
    assert reads <= 40  # the end and the record, of each append
    await one.close()
    await two.close()


async def test_trimmed_records_are_not_shared(tmp_path: Path) -> None:
    """A follower that lies behind gets no removed records, whichever process trimmed."""
    one, two = await SqliteLedger.open(tmp_path), await SqliteLedger.open(tmp_path)
    at = partition_of("k", 4)
    for trimming, until in ((one, 5), (two, 15)):
        end = await one.end("logs", at)
        ahead, behind = one.follow("logs", at, end), one.follow("logs", at, end)
        await one.append([Draft("logs", "k", b"")])
        assert len(await take(ahead, 1)) == len(await take(behind, 1)) == 1
        await one.append([Draft("logs", "k", b"")] * 10)
        assert len(await take(ahead, 10)) == 10
        await trimming.trim("logs", at, until)
        if trimming is two:
            await two.append([Draft("logs", "k", b"")])
            assert len(await take(ahead, 1)) == 1
        with pytest.raises(LedgerTrimmed):
            await anext(behind)
    await one.close()
    await two.close()
