"""Group commit: shared transactions, visibility before and after the commit, failures."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rung.events import LedgerUnavailable, partition_of, topic
from rung.ledger import Ledger, Record, SqliteLedger, staged
from rung.ledger.sqlite.watcher import Watcher
from rung.ledger.sqlite.writer import Changes, Writer
from support.ledger.conformance import draft, read_all, take

AT = partition_of("k", 4)
FACTS, DECISIONS, POOLS = topic.EXPERIMENTS, topic.SEARCHES, topic.POOLS


class Disk:
    """The disk of a ledger's commits: it may be slow, or full."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.full = False
        self.fails = 0
        """How many commits fail."""
        self.reached = threading.Event()
        """Set by a commit that waits."""

    def wait(self) -> None:
        """Let a commit reach the disk."""
        if not self.free.is_set():
            self.reached.set()
            assert self.free.wait(30)
        if self.full or self.fails:
            self.fails = max(0, self.fails - 1)
            raise OSError(28, "no space")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Give the disk of the ledgers of this test."""
    disk, commit = Disk(), Writer._commit

    def slowly(self: Writer, changes: Changes) -> None:
        disk.wait()
        commit(self, changes)

    monkeypatch.setattr(Writer, "_commit", slowly)
    return disk


@pytest.fixture
async def ledger(tmp_path: Path, disk: Disk) -> AsyncIterator[SqliteLedger]:
    """Give an empty ledger."""
    ledger = await SqliteLedger.open(tmp_path)
    yield ledger
    disk.full = False
    disk.free.set()
    await ledger.close()


async def answer(ledger: Ledger, name: str, on: str, begin: int = 0) -> None:
    """Append each record of one topic to another, for ever."""
    async for records in ledger.follow(name, AT, begin):
        await ledger.append([draft("k", it.value, on) for it in records])


@pytest.fixture
async def loops(ledger: SqliteLedger) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run a decider, a relay, and a decider behind it, until one of them fails."""
    works = ((FACTS, DECISIONS), (DECISIONS, POOLS), (POOLS, topic.PLACEMENTS))
    tasks = [asyncio.create_task(answer(staged(ledger), name, on)) for name, on in works]
    await ledger.append([draft("k", b"first")])
    await take(ledger.follow(topic.PLACEMENTS, AT, 0), 1)
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def in_thread(event: threading.Event) -> None:
    """Wait for something that happens in a thread."""
    assert await asyncio.to_thread(event.wait, 30)


async def values(ledger: Ledger, name: str) -> list[bytes]:
    """Return the durable values of a topic."""
    return [it.value for it in await read_all(ledger, name, AT)]


@pytest.mark.usefixtures("loops")
async def test_what_follows_shares_the_transaction(ledger: SqliteLedger) -> None:
    """A fact, the decision, its relayed copy and the decision on that share a commit."""
    before = ledger._commits.commits
    await ledger.append([draft("k", b"fact")])
    assert ledger._commits.commits == before + 1
    for name in (FACTS, DECISIONS, POOLS, topic.PLACEMENTS):
        assert await values(ledger, name) == [b"first", b"fact"]


@pytest.mark.usefixtures("loops")
async def test_others_see_it_once_it_is_durable(
    tmp_path: Path, ledger: SqliteLedger, disk: Disk
) -> None:
    """The appender, and followers here and in another process, get it after the commit."""
    other = await SqliteLedger.open(tmp_path)
    followers = [
        asyncio.create_task(take(it.follow(DECISIONS, AT, 1), 1)) for it in (ledger, other)
    ]
    for it in (ledger, other):
        await take(it.follow(DECISIONS, AT, 0), 1)
    disk.free.clear()
    appended = asyncio.create_task(ledger.append([draft("k", b"fact")]))
    await in_thread(disk.reached)
    assert [it.value for it in await staged(ledger).read(topic.PLACEMENTS, AT, 1, 9)] == [b"fact"]
    for it in (ledger, other):
        assert await values(it, FACTS) == await values(it, DECISIONS) == [b"first"]
    assert not any(task.done() for task in (appended, *followers))
    disk.free.set()
    assert await appended == [1]
    for task in followers:
        assert [it.value for it in await task] == [b"fact"]
    await other.close()


async def test_a_failed_commit_undoes_all_that_was_staged(
    ledger: SqliteLedger, loops: list[asyncio.Task[None]], disk: Disk
) -> None:
    """The append raises, loops end, staged records are undone; durable followers continue."""
    seen, outside = staged(ledger), asyncio.create_task(take(ledger.follow(FACTS, AT, 1), 1))
    disk.full = True
    with pytest.raises(LedgerUnavailable, match="full"):
        await ledger.append([draft("k", b"fact")])
    for failure in await asyncio.gather(*loops, return_exceptions=True):
        assert isinstance(failure, LedgerUnavailable)
    for call in (
        seen.append([draft("k")]),
        seen.commit("intake", FACTS, AT, 2),
        seen.save_snapshot("state", AT, b""),
        seen.read(FACTS, AT, 0, 1),
        take(seen.follow(FACTS, AT, 0), 1),
    ):
        with pytest.raises(LedgerUnavailable, match="full"):
            await call
    disk.full = False
    assert await staged(ledger).append([draft("k", b"again")]) == [1]
    assert [it.value for it in await outside] == [b"again"]
    for name in (DECISIONS, POOLS, topic.PLACEMENTS):
        assert await values(ledger, name) == [b"first"]


async def test_staged_writes_behind_a_failed_commit_fail(
    ledger: SqliteLedger, loops: list[asyncio.Task[None]], disk: Disk
) -> None:
    """A snapshot of staged records is not saved; a fact from outside is appended."""
    seen = staged(ledger)
    disk.free.clear()
    lost = asyncio.create_task(ledger.append([draft("k", b"lost")]))
    await in_thread(disk.reached)
    saved = asyncio.create_task(seen.save_snapshot("state", AT, b"covers what is lost"))
    kept = asyncio.create_task(ledger.append([draft("k", b"kept")]))
    await asyncio.sleep(0)
    disk.fails = 1
    disk.free.set()
    found = await asyncio.gather(lost, saved, return_exceptions=True)
    assert [type(it) for it in found] == [LedgerUnavailable] * 2
    await asyncio.gather(*loops, return_exceptions=True)
    assert await kept == [1]
    assert await values(ledger, FACTS) == [b"first", b"kept"]
    assert await ledger.snapshot("state", AT) is None


async def test_after_a_failure_nothing_is_staged(ledger: SqliteLedger, disk: Disk) -> None:
    """While the disk is full, loops are not started again by each attempt to append."""
    await ledger.append([draft("k", b"first")])
    await take(ledger.follow(FACTS, AT, 0), 1)
    disk.full = True
    with pytest.raises(LedgerUnavailable):
        await ledger.append([draft("k")])
    loop = asyncio.create_task(answer(staged(ledger), FACTS, DECISIONS, begin=1))
    for _ in range(5):
        with pytest.raises(LedgerUnavailable):
            await ledger.append([draft("k")])
    assert not loop.done()
    disk.full = False
    await ledger.append([draft("k", b"fact")])
    await take(ledger.follow(DECISIONS, AT, 0), 1)
    before = ledger._commits.commits
    await ledger.append([draft("k", b"fact")])
    assert ledger._commits.commits == before + 1
    assert await values(ledger, DECISIONS) == [b"fact", b"fact"]
    loop.cancel()


async def test_a_busy_follower_delays_a_commit_only_briefly(ledger: SqliteLedger) -> None:
    """The commit does not wait for a slow follower."""
    first = asyncio.Event()

    async def never_done() -> None:
        async for _ in staged(ledger).follow(FACTS, AT, 0):
            if first.is_set():
                await asyncio.Event().wait()
            first.set()

    slow = asyncio.create_task(never_done())
    await ledger.append([draft("k")])
    await first.wait()
    async with asyncio.timeout(5):
        for number in range(20):
            assert await ledger.append([draft("k")]) == [number + 1]
    slow.cancel()


async def test_a_follower_that_catches_up_delays_no_commit(ledger: SqliteLedger) -> None:
    """Commits do not wait for a follower far behind, which gets each record once."""
    await ledger.append([draft("k", b"%d" % number) for number in range(6000)])
    found: list[Record] = []

    async def catch_up() -> None:
        async for records in staged(ledger).follow(FACTS, AT, 0):
            found.extend(records)
            await asyncio.sleep(0)

    loop = asyncio.create_task(catch_up())
    while len(found) < 6400:
        await staged(ledger).append([draft("k")] * 40)
        await ledger.append([draft("k")] * 40)
    loop.cancel()
    assert [it.position for it in found] == list(range(len(found)))


async def test_more_is_staged_than_the_channel_caches(ledger: SqliteLedger, disk: Disk) -> None:
    """However much is staged at once, followers get all of it, in order."""
    big = [draft("k", b"%d" % number * 50_000) for number in range(20)]
    loop = asyncio.create_task(answer(staged(ledger), FACTS, DECISIONS))
    await ledger.append([draft("k")])
    await take(ledger.follow(DECISIONS, AT, 0), 1)
    disk.free.clear()
    appends = [asyncio.create_task(ledger.append(big)) for _ in range(10)]
    await in_thread(disk.reached)
    disk.free.set()
    await asyncio.gather(*appends)
    decided = await take(ledger.follow(DECISIONS, AT, 1), 10 * len(big))
    assert [it.value for it in decided] == [it.value for it in big] * 10
    loop.cancel()


def test_a_loop_that_ended_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger left open by an ended loop, with a transaction, does not block other writers."""
    left: list[object] = []

    async def leave() -> None:
        ledger = await SqliteLedger.open(tmp_path)
        left.append((ledger, asyncio.create_task(ledger.append([draft("k", b"left")]))))
        while ledger._commits._state != "open":  # noqa: ASYNC110 - has no event
            await asyncio.sleep(0)

    async def append() -> list[bytes]:
        ledger = await SqliteLedger.open(tmp_path)
        async with asyncio.timeout(30):
            await ledger.append([draft("k", b"other")])
        found = await values(ledger, FACTS)
        await ledger.close()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "busy", lambda *_: True)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave())
        loop.close()
    assert asyncio.run(append()) == [b"other"]
