"""Feeds: each stream read once, each record rendered once, nobody waited for."""

import asyncio
import operator
from collections.abc import AsyncIterator, Hashable, Sequence
from functools import partial

import pytest

from gateway.conftest import until
from rung.events import LedgerUnavailable, partition_of, topic
from rung.gateway.streams.feed import Feed, Feeds, Frame, Interest, Piece, Source, Subscription
from rung.ledger import Draft, MemoryLedger, Record

PLACES = [Source(topic.METRICS, partition) for partition in range(4)]


class CountedLedger(MemoryLedger):
    """Counts its followers."""

    following = 0
    followed = 0

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on."""
        self.following += 1
        self.followed += 1
        try:
            async for records in super().follow(topic, partition, position):
                yield records
        finally:
            self.following -= 1


class Rendered:
    """Makes interests, and remembers which records were rendered for them."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def interest(self, experiment: str, name: Hashable = None) -> Interest:
        """Return an interest in all records of an experiment."""

        def render(record: Record) -> Frame:
            self.keys.append(record.key)
            return Frame("e", record.value)

        return Interest(experiment, name, render)


async def write(ledger: MemoryLedger, key: str, *values: bytes) -> None:
    """Append records of a key."""
    await ledger.append([Draft(topic.METRICS, key, value) for value in values])


async def taken(feed: Feed, subscription: Subscription, until: Sequence[int]) -> list[bytes]:
    """Return the data that a subscription gets before some positions."""
    await feed.reached(until)
    data = b""
    while (passed := subscription.passed()) is None or any(map(int.__lt__, passed, until)):
        piece = subscription.take()
        if piece is None:
            await subscription.wait(10)
        else:
            data += piece.data
    return _data_of(data)


def _data_of(frames: bytes) -> list[bytes]:
    return [line[6:] for line in frames.splitlines() if line.startswith(b"data: ")]


async def _next(subscription: Subscription) -> list[bytes]:
    """Return the data of the next piece, without waiting as an idle client does."""

    async def take() -> Piece | None:
        return subscription.take()

    return _data_of((await until(take, bool)).data)


async def ends(ledger: MemoryLedger) -> list[int]:
    """Return where all sources end."""
    return [await ledger.end(*place) for place in PLACES]


async def test_read_and_rendered_once() -> None:
    """A hundred clients make one follower of each stream; each record is rendered once."""
    ledger, rendered = CountedLedger(), Rendered()
    feeds = Feeds(ledger)
    async with asyncio.TaskGroup() as group:
        joined = asyncio.Barrier(101)

        async def client() -> list[bytes]:
            async with feeds.of(PLACES) as feed:
                await feed.reached([0] * 4)
                with feed.subscribed(rendered.interest("mine")) as subscription:
                    await joined.wait()
                    await joined.wait()
                    return await taken(feed, subscription, await ends(ledger))

        clients = [group.create_task(client()) for _ in range(100)]
        await joined.wait()
        for number in range(20):
            await write(ledger, f"mine.{number}", b"%d" % number)
        await joined.wait()
    expected = sorted(b"%d" % number for number in range(20))
    assert all(sorted(task.result()) == expected for task in clients)
    assert len(rendered.keys) == 20
    assert (ledger.followed, ledger.following) == (4, 0)


async def test_others_records_are_not_looked_at() -> None:
    """What is of another experiment is not rendered, also where its id begins alike."""
    ledger, rendered = CountedLedger(), Rendered()
    async with Feeds(ledger).of(PLACES) as feed:
        await feed.reached([0] * 4)
        with feed.subscribed(rendered.interest("mine")) as subscription:
            for key in ("mine2.0", "min.0", "mine.0", "other.0", "mine"):
                await write(ledger, key, key.encode())
            seen = await taken(feed, subscription, await ends(ledger))
    assert sorted(seen) == [b"mine", b"mine.0"]
    assert sorted(rendered.keys) == ["mine", "mine.0"]


async def test_different_interests_in_one_experiment() -> None:
    """Clients that want different parts of an experiment get each their own."""
    ledger = CountedLedger()

    def wanting(value: bytes) -> Interest:
        def render(record: Record) -> Frame | None:
            return Frame("e", record.value) if record.value == value else None

        return Interest("mine", value, render)

    async with Feeds(ledger).of(PLACES) as feed:
        await feed.reached([0] * 4)
        with feed.subscribed(wanting(b"a")) as some, feed.subscribed(wanting(b"b")) as others:
            await write(ledger, "mine.0", b"a", b"b", b"a")
            until = await ends(ledger)
            assert await taken(feed, some, until) == [b"a", b"a"]
            assert await taken(feed, others, until) == [b"b"]


async def test_one_that_joins_gets_what_comes_from_there_on() -> None:
    """A client that joins gets nothing that was handed on before, given out or not."""
    ledger, rendered = CountedLedger(), Rendered()
    async with Feeds(ledger).of(PLACES) as feed:
        await feed.reached([0] * 4)
        with feed.subscribed(rendered.interest("mine")) as first:
            await write(ledger, "mine.0", b"1")
            await feed.reached(await ends(ledger))
            with feed.subscribed(rendered.interest("mine")) as second:
                assert list(second.start) == await ends(ledger)
                await write(ledger, "mine.0", b"2")
                until = await ends(ledger)
                assert await taken(feed, first, until) == [b"1", b"2"]
                assert await taken(feed, second, until) == [b"2"]


async def test_a_slow_client_is_given_up_and_holds_up_nobody() -> None:
    """The subscription of one that takes nothing is bounded and emptied; others get all."""
    ledger, rendered = CountedLedger(), Rendered()
    async with Feeds(ledger).of(PLACES) as feed:
        await feed.reached([0] * 4)
        interest = rendered.interest("mine")
        with feed.subscribed(interest) as slow, feed.subscribed(interest) as quick:
            seen = []
            for _ in range(30):
                await write(ledger, "mine.0", b"x" * 100_000)
                seen += await taken(feed, quick, await ends(ledger))
            assert len(seen) == 30
            assert slow.overflowed
            assert slow.take() is None
            assert slow.passed() is None
            with feed.subscribed(interest) as again:
                await write(ledger, "mine.0", b"y")
                assert await taken(feed, again, await ends(ledger)) == [b"y"]


async def test_an_idle_client_is_sent_to_at_once() -> None:
    """Without being woken; what its connection does not take waits for it, in order."""
    ledger, rendered = CountedLedger(), Rendered()
    sent: list[Piece] = []
    free = True

    def send(piece: Piece) -> bool:
        if free:
            sent.append(piece)
        return free

    async with Feeds(ledger).of(PLACES) as feed:
        await feed.reached([0] * 4)
        with feed.subscribed(rendered.interest("mine"), send) as subscription:

            async def passed() -> Sequence[int] | None:
                return subscription.passed()

            waiting = asyncio.create_task(subscription.wait(30))
            for value in (b"1", b"2"):
                await write(ledger, "mine.0", value)
                await until(passed, partial(operator.eq, tuple(await ends(ledger))))
            assert not waiting.done()
            free = False
            await write(ledger, "mine.0", b"3")
            await waiting
            free = True
            await write(ledger, "mine.0", b"4")
            assert [await _next(subscription), await _next(subscription)] == [[b"3"], [b"4"]]
    assert [data for piece in sent for data in _data_of(piece.data)] == [b"1", b"2"]
    assert [piece.chunk for piece in sent] == [
        b"%x\r\n" % len(piece.data) + piece.data + b"\r\n" for piece in sent
    ]


async def test_a_failure_is_everybodys_and_the_next_client_begins_anew() -> None:
    """Clients of a feed whose ledger failed learn it; a new client gets a new feed."""
    ledger, rendered = CountedLedger(), Rendered()
    feeds = Feeds(ledger)
    async with feeds.of(PLACES) as feed:
        await feed.reached([0] * 4)
        with feed.subscribed(rendered.interest("mine")) as subscription:
            waiting = asyncio.create_task(subscription.wait(30))
            await asyncio.sleep(0)
            await ledger.close()
            await waiting
            with pytest.raises(LedgerUnavailable, match="closed"):
                await subscription.wait(30)
        async with feeds.of(PLACES) as another:
            assert another is not feed


async def test_a_render_that_raises_ends_its_clients() -> None:
    """A fault of the gateway's own is not swallowed: the clients' requests fail with it."""
    ledger = CountedLedger()

    def render(record: Record) -> Frame:
        raise ZeroDivisionError(record.key)

    async with Feeds(ledger).of(PLACES) as feed:
        await feed.reached([0] * 4)
        with feed.subscribed(Interest("mine", None, render)) as subscription:
            at = partition_of("mine.0", 4)
            await write(ledger, "mine.0", b"")
            with pytest.raises(ZeroDivisionError):
                await feed.reached([int(number == at) + 1 for number in range(4)])
            with pytest.raises(ZeroDivisionError):
                await subscription.wait(30)
