"""What every adapter of the ledger must do; each adapter's tests inherit these classes."""

import asyncio
import contextlib
import gc
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from rung.events import (
    LedgerDamaged,
    LedgerError,
    LedgerTrimmed,
    LedgerUnavailable,
    partition_of,
    topic,
)
from rung.ledger import (
    Draft,
    Ledger,
    Record,
    Transactional,
    append_and_commit,
    read_of,
    staged,
)
from rung.ledger.seals import SealKey
from rung.ledger.seals.verify import Known, verify
from support.ledger.sealed import seal

Opener = Callable[[], Awaitable[Ledger]]

HOSTILE = [
    b"",
    b"\x00",
    b"{}\n{}\r\n",
    bytes(range(256)),
    b"\xff\xfe" * 100,
    "Grüße, 世界".encode(),
    b"'; DROP TABLE records; --",
]
HOSTILE_KEYS = ["a", "a.b", "Grüße", "世界", "q\"uo'te", "new\nline", "back\\slash", " ", "\x01"]


def draft(key: str = "k", value: bytes = b"{}", name: str = topic.EXPERIMENTS) -> Draft:
    """Return a draft of which only one part matters."""
    return Draft(name, key, value)


async def read_all(ledger: Ledger, name: str, partition: int, limit: int = 1000) -> list[Record]:
    """Read a partition from its beginning to its end."""
    records: list[Record] = []
    position = 0
    while batch := await ledger.read(name, partition, position, limit):
        records += batch
        position = batch[-1].position + 1
    return records


async def take(following: AsyncIterator[Sequence[Record]], count: int) -> list[Record]:
    """Take records off a follower until there are as many, however long that takes."""
    records: list[Record] = []
    while len(records) < count:
        records += await anext(following)
    return records


class LedgerConformance:
    """Holds for a single open ledger."""

    @pytest.fixture
    async def ledger(self) -> AsyncIterator[Ledger]:
        """Give an empty ledger with four partitions; each adapter gives its own."""
        for ledger in list[Ledger]():
            yield ledger
        raise NotImplementedError

    async def test_positions_count_from_zero_without_gaps(self, ledger: Ledger) -> None:
        """Each stream numbers its records from 0, whatever is appended to others."""
        assert await ledger.append([draft("k"), draft("k")]) == [0, 1]
        assert await ledger.append([draft("k", name=topic.SEARCHES)]) == [0]
        assert await ledger.append([draft("k"), draft("k", name=topic.SEARCHES)]) == [2, 1]

    async def test_records_say_where_they_lie(self, ledger: Ledger) -> None:
        """A record carries its topic, partition, position, key and value."""
        await ledger.append([draft("k", b"one"), draft("k", b"two")])
        at = partition_of("k", 4)
        assert await ledger.read(topic.EXPERIMENTS, at, 0, 10) == [
            Record(topic.EXPERIMENTS, at, 0, "k", b"one"),
            Record(topic.EXPERIMENTS, at, 1, "k", b"two"),
        ]

    async def test_records_are_not_tracked(self, ledger: Ledger) -> None:
        """The garbage collector looks at no record, however many are read and kept."""
        await ledger.append([draft("k"), draft("k")])
        at = partition_of("k", 4)
        following = ledger.follow(topic.EXPERIMENTS, at, 0)
        found = await ledger.read(topic.EXPERIMENTS, at, 0, 10) + await take(following, 2)
        assert len(found) == 4
        assert not any(map(gc.is_tracked, found))

    async def test_key_chooses_partition(self, ledger: Ledger) -> None:
        """A key's records lie in the partition that `partition_of` names, in every topic."""
        for key in HOSTILE_KEYS:
            at = partition_of(key, ledger.partitions(topic.METRICS))
            await ledger.append([draft(key, name=topic.METRICS)])
            assert key in [record.key for record in await read_all(ledger, topic.METRICS, at)]

    async def test_nothing_appended(self, ledger: Ledger) -> None:
        """No drafts, no positions, no harm."""
        assert await ledger.append([]) == []
        assert await ledger.end(topic.EXPERIMENTS, 0) == 0

    async def test_bytes_come_back_as_they_went(self, ledger: Ledger) -> None:
        """Values and keys are kept byte for byte."""
        drafts = [draft(key, value) for key in HOSTILE_KEYS for value in HOSTILE]
        await ledger.append(drafts)
        kept = [
            record
            for partition in range(4)
            for record in await read_all(ledger, topic.EXPERIMENTS, partition)
        ]
        assert sorted((record.key, record.value) for record in kept) == sorted(
            (key, value) for _, key, value in drafts
        )

    async def test_big_values(self, ledger: Ledger) -> None:
        """Values of five megabytes are kept, and reading many of them gets on."""
        values = [random.Random(seed).randbytes(5 << 20) for seed in range(4)]  # noqa: S311 - data
        await ledger.append([draft("k", value) for value in values])
        records = await read_all(ledger, topic.EXPERIMENTS, partition_of("k", 4))
        assert [record.value for record in records] == values

    async def test_read_in_parts(self, ledger: Ledger) -> None:
        """Reading from any position with any limit gives that part of the whole."""
        await ledger.append([draft("k", str(number).encode()) for number in range(50)])
        at = partition_of("k", 4)
        whole = await read_all(ledger, topic.EXPERIMENTS, at)
        assert [record.value for record in whole] == [b"%d" % number for number in range(50)]
        for position in (0, 1, 17, 49):
            for limit in (1, 3, 100):
                part = await ledger.read(topic.EXPERIMENTS, at, position, limit)
                assert part == whole[position : position + limit]

    async def test_read_at_the_end(self, ledger: Ledger) -> None:
        """There is nothing at the end; whoever was beyond it before learns that it is lost."""
        await ledger.append([draft("k"), draft("k")])
        at = partition_of("k", 4)
        assert await ledger.start(topic.EXPERIMENTS, at) == 0
        assert await ledger.end(topic.EXPERIMENTS, at) == 2
        assert await ledger.read(topic.EXPERIMENTS, at, 2, 10) == []
        with pytest.raises(LedgerDamaged, match="ends at 2, before position 1000"):
            await ledger.read(topic.EXPERIMENTS, at, 1000, 10)
        with pytest.raises(LedgerDamaged, match="ends at 2, before position 3"):
            await anext(ledger.follow(topic.EXPERIMENTS, at, 3))

    async def test_concurrent_writers(self, ledger: Ledger) -> None:
        """128 writers at once leave no gap; each one's records keep their order."""

        async def write(writer: int) -> list[int]:
            return [
                position
                for number in range(20)
                for position in await ledger.append([draft("k", b"%d %d" % (writer, number))])
            ]

        given = await asyncio.gather(*(write(writer) for writer in range(128)))
        records = await read_all(ledger, topic.EXPERIMENTS, partition_of("k", 4))
        assert [record.position for record in records] == list(range(128 * 20))
        for writer, positions in enumerate(given):
            mine = [records[position].value for position in positions]
            assert mine == [b"%d %d" % (writer, number) for number in range(20)]
            assert positions == sorted(positions)

    async def test_batches_stay_together(self, ledger: Ledger) -> None:
        """The drafts of one append lie side by side, however many append at once."""

        async def write(writer: int) -> list[int]:
            return await ledger.append([draft("k", b"%d" % writer)] * 7)

        for positions in await asyncio.gather(*(write(writer) for writer in range(50))):
            assert positions == list(range(positions[0], positions[0] + 7))

    async def test_all_or_nothing(self, ledger: Ledger) -> None:
        """One draft that cannot be appended keeps the others of its batch out."""
        with pytest.raises(LedgerError, match="weather"):
            await ledger.append([draft("k"), draft("k", name="weather"), draft("k")])
        assert await ledger.end(topic.EXPERIMENTS, partition_of("k", 4)) == 0

    @pytest.mark.parametrize(("name", "partition"), [("weather", 0), ("experiments", 4)])
    async def test_unknown_stream(self, ledger: Ledger, name: str, partition: int) -> None:
        """A topic or partition that does not exist is refused by name."""
        with pytest.raises(LedgerError, match=name):
            await ledger.read(name, partition, 0, 1)
        with pytest.raises(LedgerError, match=name):
            await ledger.end(name, partition)
        with pytest.raises(LedgerError, match=name):
            await anext(ledger.follow(name, partition, 0))

    @pytest.mark.parametrize("position", [0, 1, 5])
    async def test_follow_what_is_there_and_what_comes(
        self, ledger: Ledger, position: int
    ) -> None:
        """A follower gets each record from its position on once, in order, old and new."""
        at = partition_of("k", 4)
        await ledger.append([draft("k", b"%d" % number) for number in range(5)])
        following = ledger.follow(topic.EXPERIMENTS, at, position)
        taking = asyncio.create_task(take(following, 10 - position))
        for number in range(5, 10):
            await ledger.append([draft("k", b"%d" % number)])
        assert [record.position for record in await taking] == list(range(position, 10))
        assert [record.value for record in taking.result()] == [
            b"%d" % number for number in range(position, 10)
        ]

    async def test_follow_in_different_places(self, ledger: Ledger) -> None:
        """Followers of one partition that begin at different positions do not disturb another."""
        at = partition_of("k", 4)
        await ledger.append([draft("k", b"%d" % number) for number in range(2500)])
        followers = [
            (position, ledger.follow(topic.EXPERIMENTS, at, position))
            for position in (0, 2500, 1200, 2499, 2500)
        ]
        taking = [
            asyncio.create_task(take(following, 2510 - position))
            for position, following in followers
        ]
        for number in range(2500, 2510):
            await ledger.append([draft("k", b"%d" % number)])
        for (position, _), taken in zip(followers, taking, strict=True):
            assert [record.position for record in await taken] == list(range(position, 2510))

    async def test_many_followers(self, ledger: Ledger) -> None:
        """All followers of all partitions see all of it while it is being written."""
        names = (topic.EXPERIMENTS, topic.METRICS)
        keys = [f"k{number}" for number in range(40)]
        counts = [sum(partition_of(key, 4) == part for key in keys) * 10 for part in range(4)]
        taking = [
            asyncio.create_task(take(ledger.follow(name, part, 0), counts[part]))
            for name in names
            for part in range(4)
            for _ in range(3)
        ]
        for number in range(10):
            await asyncio.gather(
                *(
                    ledger.append([draft(key, b"%d" % number, name) for name in names])
                    for key in keys
                )
            )
        for records in await asyncio.gather(*taking):
            assert [record.position for record in records] == list(range(len(records)))

    async def test_slow_follower(self, ledger: Ledger) -> None:
        """A follower that stays far behind misses nothing."""
        at = partition_of("k", 4)
        following = ledger.follow(topic.EXPERIMENTS, at, 0)
        await ledger.append([draft("k")])
        records = await take(following, 1)
        for _ in range(5):
            await ledger.append([draft("k", b"x" * 100)] * 1000)
        records += await take(following, 5000)
        assert [record.position for record in records] == list(range(5001))

    async def test_following_can_stop(self, ledger: Ledger) -> None:
        """A canceled follower leaves the others and the next one untouched."""
        at = partition_of("k", 4)
        gone = asyncio.create_task(take(ledger.follow(topic.EXPERIMENTS, at, 0), 1))
        stays = asyncio.create_task(take(ledger.follow(topic.EXPERIMENTS, at, 0), 1))
        await asyncio.sleep(0)
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        await ledger.append([draft("k")])
        assert len(await stays) == 1
        assert len(await take(ledger.follow(topic.EXPERIMENTS, at, 0), 1)) == 1

    async def test_followers_join_while_it_grows(self, ledger: Ledger) -> None:
        """Whoever joins, wherever and whenever, gets each record from there on once, in order."""
        at = partition_of("k", 4)
        chance = random.Random(7)  # noqa: S311 - chooses the places
        taking: list[tuple[int, asyncio.Task[list[Record]]]] = []
        for end in range(0, 600, 20):
            await ledger.append([draft("k", b"%d" % number) for number in range(end, end + 20)])
            begin = chance.choice((0, end // 2, end + 19, end + 20))
            following = ledger.follow(topic.EXPERIMENTS, at, begin)
            taking.append((begin, asyncio.create_task(take(following, 601 - begin))))
            await asyncio.sleep(0)
        await ledger.append([draft("k", b"600")])
        for begin, task in taking:
            records = await task
            assert [record.position for record in records] == list(range(begin, 601))
            assert [record.value for record in records] == [b"%d" % n for n in range(begin, 601)]

    async def test_the_one_that_stops_takes_nothing_from_the_others(self, ledger: Ledger) -> None:
        """Followers at one place get it all, whichever of them is canceled at whichever moment."""
        at = partition_of("k", 4)
        await ledger.append([draft("k")] * 3)
        for turns in range(12):
            followers = [ledger.follow(topic.EXPERIMENTS, at, 0) for _ in range(3)]
            taking = [asyncio.create_task(take(following, 3)) for following in followers]
            for _ in range(turns):
                await asyncio.sleep(0)
            taking[0].cancel()
            await asyncio.gather(taking[0], return_exceptions=True)
            for records in await asyncio.gather(*taking[1:]):
                assert [record.position for record in records] == [0, 1, 2]

    async def test_consumer_positions(self, ledger: Ledger) -> None:
        """Each consumer has a position of its own in each partition, 0 at first."""
        assert await ledger.position("intake", topic.SEARCHES, 1) == 0
        await ledger.commit("intake", topic.SEARCHES, 1, 7)
        await ledger.commit("intake", topic.SEARCHES, 1, 9)
        await ledger.commit("intake", topic.SEARCHES, 2, 3)
        assert await ledger.position("intake", topic.SEARCHES, 1) == 9
        assert await ledger.position("intake", topic.SEARCHES, 2) == 3
        assert await ledger.position("intake", topic.PLACEMENTS, 1) == 0
        assert await ledger.position("other", topic.SEARCHES, 1) == 0

    async def test_read_of_a_root(self, ledger: Ledger) -> None:
        """Records of a root's keys are found in order, between any positions, and no others."""
        at = partition_of("k", 4)
        others = [key for key in (f"k{n}.0" for n in range(999)) if partition_of(key, 4) == at][:3]
        mine = [key for key in (f"k.{n}" for n in range(999)) if partition_of(key, 4) == at][:3]
        keys = ["k", *others, *mine, "k"] * 150
        await ledger.append([draft(key, b"%d" % n) for n, key in enumerate(keys)])
        whole = await read_all(ledger, topic.EXPERIMENTS, at)
        own = [record for record in whole if record.key == "k" or record.key in mine]
        for begin, end in ((0, 1200), (0, 0), (7, 8), (3, 1190), (1200, 1200)):
            found: list[Record] = []
            position = begin
            while position < end:
                records, reached = await read_of(
                    ledger, (topic.EXPERIMENTS, at), position, end, "k"
                )
                assert position < reached <= end
                found += records
                position = reached
            assert found == [record for record in own if begin <= record.position < end]

    async def test_append_and_commit(self, ledger: Ledger) -> None:
        """What a consumer appends and its position are there afterwards, or neither of them."""
        at = partition_of("k", 4)
        drafts = [draft("k", b"one"), draft("k", b"two")]
        assert await append_and_commit(ledger, drafts, "intake", (topic.SEARCHES, 1), 7) == [0, 1]
        assert await append_and_commit(ledger, [], "intake", (topic.SEARCHES, 1), 8) == []
        assert await ledger.position("intake", topic.SEARCHES, 1) == 8
        assert await ledger.end(topic.EXPERIMENTS, at) == 2
        unknown = [draft("k"), draft("k", name="weather")]
        with pytest.raises(LedgerError, match="weather"):
            await append_and_commit(ledger, unknown, "intake", (topic.SEARCHES, 1), 9)
        assert await ledger.position("intake", topic.SEARCHES, 1) == 8
        assert await ledger.end(topic.EXPERIMENTS, at) == 2

    async def test_snapshots(self, ledger: Ledger) -> None:
        """A snapshot replaces the one of the same name and partition, and no other."""
        assert await ledger.snapshot("searcher", 0) is None
        for value in (b"", b"first", bytes(range(256)) * 5000):
            await ledger.save_snapshot("searcher", 0, value)
            assert await ledger.snapshot("searcher", 0) == value
        await ledger.save_snapshot("searcher", 1, b"other")
        assert await ledger.snapshot("searcher", 0) == bytes(range(256)) * 5000
        assert await ledger.snapshot("scheduler", 0) is None

    async def test_what_is_staged_becomes_durable_in_order(self, ledger: Ledger) -> None:
        """Those who see what is staged append because of it, and others see all of it."""
        seen = staged(ledger)
        at = partition_of("k", 4)

        async def decide() -> None:
            async for records in seen.follow(topic.EXPERIMENTS, at, 0):
                await seen.append([draft("k", it.value, topic.SEARCHES) for it in records])

        async def bring_on() -> None:
            async for records in seen.follow(topic.SEARCHES, at, 0):
                position = records[-1].position + 1
                drafts = [draft("k", it.value, topic.POOLS) for it in records]
                place = (topic.SEARCHES, at)
                await append_and_commit(seen, drafts, "intake", place, position)
                if position == len(values):
                    return

        values = [b"%d" % number for number in range(300)]
        deciding, bringing = asyncio.create_task(decide()), asyncio.create_task(bring_on())
        followers = [
            asyncio.create_task(take(ledger.follow(name, at, 0), len(values)))
            for name in (topic.EXPERIMENTS, topic.SEARCHES, topic.POOLS)
        ]
        for number, value in enumerate(values):
            assert await ledger.append([draft("k", value)]) == [number]
        found = await asyncio.gather(*followers)
        await bringing
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)
        assert [[it.value for it in records] for records in found] == [values] * 3
        assert [[it.position for it in records] for records in found] == [list(range(300))] * 3
        assert await seen.position("intake", topic.SEARCHES, at) == len(values)

    async def test_what_is_staged_is_read(self, ledger: Ledger) -> None:
        """Who appended what is staged reads it at once, and where it ends."""
        seen = staged(ledger)
        at = partition_of("k", 4)
        for number in range(50):
            assert await seen.append([draft("k", b"%d" % number), draft("k")]) == [
                2 * number,
                2 * number + 1,
            ]
            assert await seen.end(topic.EXPERIMENTS, at) == 2 * number + 2
            records = await read_all(seen, topic.EXPERIMENTS, at, limit=7)
            assert [it.position for it in records] == list(range(2 * number + 2))
        assert await ledger.append([draft("k")]) == [100]
        assert len(await read_all(ledger, topic.EXPERIMENTS, at)) == 101

    async def test_close_finishes_appends(self, ledger: Ledger) -> None:
        """What was being appended at closing is appended; what comes later is refused."""
        pending = [asyncio.create_task(ledger.append([draft("k")])) for _ in range(20)]
        await asyncio.sleep(0)
        await ledger.close()
        assert [await append for append in pending] == [[number] for number in range(20)]
        with pytest.raises(LedgerUnavailable, match="closed"):
            await ledger.append([draft("k")])
        with pytest.raises(LedgerUnavailable, match="closed"):
            await ledger.read(topic.EXPERIMENTS, 0, 0, 1)
        await ledger.close()

    async def test_close_ends_following(self, ledger: Ledger) -> None:
        """A follower that waits learns that the ledger was closed."""
        following = asyncio.create_task(take(ledger.follow(topic.EXPERIMENTS, 0, 0), 1))
        await asyncio.sleep(0)
        await ledger.close()
        with pytest.raises(LedgerUnavailable, match="closed"):
            await following

    async def test_a_canceled_append_harms_nobody(self, ledger: Ledger) -> None:
        """Whether it was appended or not, the others get contiguous positions."""
        canceled = asyncio.create_task(ledger.append([draft("k")]))
        await asyncio.sleep(0)
        canceled.cancel()
        position = (await ledger.append([draft("k")]))[0]
        assert await ledger.append([draft("k")]) == [position + 1]

    async def test_sealed(self, ledger: Ledger) -> None:
        """What it holds is sealed and verified; what comes later is named as not sealed."""
        key = SealKey.generate()
        await ledger.append([draft(f"k{number}.0") for number in range(100)])
        await seal(ledger, key, records=30)
        report = await verify(ledger, Known(keys=key.trusted))
        assert (report.problems, report.unsealed, report.records) == ([], [], 100)
        await ledger.append([draft("k1.0")])
        assert [item.count for item in (await verify(ledger)).unsealed] == [1]
        await seal(ledger, key)
        assert (await verify(ledger, Known(keys=key.trusted))).unsealed == []


class TransactionalConformance(LedgerConformance):
    """Holds for a ledger that has transactions."""

    @pytest.fixture
    def transactional(self, ledger: Ledger) -> Transactional:
        """Give the ledger as what it is, too."""
        assert isinstance(ledger, Transactional)
        return ledger

    async def test_a_transaction_reads_what_it_wrote_and_others_do_not(
        self, ledger: Ledger, transactional: Transactional
    ) -> None:
        """Inside, records and positions are there at once; outside, all of them after its end."""
        at = partition_of("k", 4)
        await ledger.append([draft("k", b"before")])
        async with transactional.transaction() as inner:
            assert (inner.id, inner.partitions(topic.LOGS)) == (ledger.id, 4)
            assert await inner.append([draft("k", b"one")] * 600) == list(range(1, 601))
            assert await inner.append([draft("k", b"two")]) == [601]
            await inner.commit("intake", topic.SEARCHES, 1, 7)
            await inner.save_snapshot("searcher", 0, b"state")
            assert (await read_all(inner, topic.EXPERIMENTS, at))[-1].value == b"two"
            assert await inner.start(topic.EXPERIMENTS, at) == 0
            assert await inner.end(topic.EXPERIMENTS, at) == 602
            assert await inner.position("intake", topic.SEARCHES, 1) == 7
            assert await inner.snapshot("searcher", 0) == b"state"
            assert await ledger.end(topic.EXPERIMENTS, at) == 1
            assert await ledger.position("intake", topic.SEARCHES, 1) == 0
        assert await ledger.end(topic.EXPERIMENTS, at) == 602
        assert await ledger.position("intake", topic.SEARCHES, 1) == 7
        assert await ledger.snapshot("searcher", 0) == b"state"
        assert await ledger.append([draft("k", b"after")]) == [602]

    async def test_a_transaction_that_fails_never_was(
        self, ledger: Ledger, transactional: Transactional
    ) -> None:
        """If its body raises or is canceled, the ledger is as before and can be written."""
        at = partition_of("k", 4)

        async def fail(error: type[BaseException]) -> None:
            async with transactional.transaction() as inner:
                await inner.append([draft("k")] * 700)
                await inner.commit("intake", topic.SEARCHES, 1, 7)
                raise error

        for error in (ZeroDivisionError, asyncio.CancelledError):
            with pytest.raises(error):
                await fail(error)
            assert await ledger.end(topic.EXPERIMENTS, at) == 0
            assert await ledger.position("intake", topic.SEARCHES, 1) == 0
        assert await ledger.append([draft("k")]) == [0]

    async def test_a_transaction_refuses_like_the_ledger(
        self, ledger: Ledger, transactional: Transactional
    ) -> None:
        """A draft that cannot be appended raises, and the rest of the transaction can go on."""
        async with transactional.transaction() as inner:
            with pytest.raises(LedgerError, match="weather"):
                await inner.append([draft("k"), draft("k", name="weather")])
            assert await inner.append([draft("k")]) == [0]
        assert await ledger.end(topic.EXPERIMENTS, partition_of("k", 4)) == 1

    async def test_followers_see_a_transaction(
        self, ledger: Ledger, transactional: Transactional
    ) -> None:
        """A follower that waits is woken by the end of a transaction."""
        following = ledger.follow(topic.EXPERIMENTS, partition_of("k", 4), 0)
        taking = asyncio.create_task(take(following, 3))
        await ledger.append([draft("k", b"first")])
        async with transactional.transaction() as inner:
            await inner.append([draft("k", b"second"), draft("k", b"third")])
        assert [record.value for record in await taking] == [b"first", b"second", b"third"]


class TrimmingConformance(LedgerConformance):
    """Holds for a ledger that counts how many heartbeats it keeps."""

    async def test_old_heartbeats_go(self, ledger: Ledger) -> None:
        """About a thousand heartbeats are kept; their positions go on counting."""
        at = partition_of("agent", 4)
        for _ in range(30):
            await ledger.append([draft("agent", name=topic.HEARTBEATS)] * 100)
        kept = await read_all(ledger, topic.HEARTBEATS, at, limit=300)
        assert 1000 <= len(kept) <= 1300
        assert await ledger.start(topic.HEARTBEATS, at) == 3000 - len(kept)
        assert [record.position for record in kept] == list(range(3000 - len(kept), 3000))
        assert await ledger.end(topic.HEARTBEATS, at) == 3000
        followed = await take(ledger.follow(topic.HEARTBEATS, at, 5), len(kept))
        assert followed == kept


class DurableConformance(LedgerConformance):
    """Holds for a ledger that several may open, one after the other and at once."""

    @pytest.fixture
    def opener(self) -> Opener:
        """Give a function that opens the ledger of this test once more."""
        raise NotImplementedError

    async def test_all_is_there_after_reopening(self, opener: Opener) -> None:
        """Id, records, positions and snapshots outlive the process's hold on the ledger."""
        first = await opener()
        await first.append([draft("k", b"one"), draft("k", b"two")])
        await first.commit("intake", topic.SEARCHES, 1, 7)
        await first.save_snapshot("searcher", 2, b"state")
        await first.close()
        second = await opener()
        at = partition_of("k", 4)
        assert second.id == first.id
        records = await read_all(second, topic.EXPERIMENTS, at)
        assert [record.value for record in records] == [b"one", b"two"]
        assert await second.position("intake", topic.SEARCHES, 1) == 7
        assert await second.snapshot("searcher", 2) == b"state"
        assert await second.append([draft("k")]) == [2]
        await second.close()

    async def test_an_append_is_durable_with_all_before_it(self, opener: Opener) -> None:
        """Whoever opens the ledger then finds what was staged before, too."""
        one, two = await opener(), await opener()
        at = partition_of("k", one.partitions(topic.SEARCHES))
        begin = await two.end(topic.SEARCHES, at)
        for number in range(1, 20):
            await staged(one).append([draft("k", name=topic.SEARCHES)])
            await one.append([draft("k", name=topic.POOLS)])
            assert await two.end(topic.SEARCHES, at) == begin + number
        await one.close()
        await two.close()

    async def test_two_append_at_once(self, opener: Opener) -> None:
        """Appends through two open ledgers interleave without gap or loss."""
        one, two = await opener(), await opener()

        async def write(ledger: Ledger, name: bytes) -> list[int]:
            return [
                position
                for _ in range(100)
                for position in await ledger.append([draft("k", name)])
            ]

        ones, twos = await asyncio.gather(write(one, b"one"), write(two, b"two"))
        records = await read_all(two, topic.EXPERIMENTS, partition_of("k", 4))
        assert [record.position for record in records] == list(range(200))
        assert [record.position for record in records if record.value == b"one"] == ones
        assert [record.position for record in records if record.value == b"two"] == twos
        await one.close()
        await two.close()

    async def test_followers_hear_of_others(self, opener: Opener) -> None:
        """A follower is woken by what another open ledger appends, mixed with its own."""
        one, two = await opener(), await opener()
        following = one.follow(topic.EXPERIMENTS, partition_of("k", 4), 0)
        values: list[bytes] = []
        for number in range(30):
            writer = two if number % 3 else one
            await writer.append([draft("k", b"%d" % number)])
            values += [record.value for record in await take(following, 1)]
        assert values == [b"%d" % number for number in range(30)]
        await one.close()
        await two.close()

    async def test_all_followers_hear_of_others(self, opener: Opener) -> None:
        """Any number of followers get all that two open ledgers append, in one order."""
        one, two = await opener(), await opener()
        at = partition_of("k", 4)
        taking = [
            asyncio.create_task(take(one.follow(topic.EXPERIMENTS, at, 0), 120)) for _ in range(20)
        ]

        async def write(ledger: Ledger, name: bytes) -> None:
            for number in range(20):
                await ledger.append([draft("k", name + b" %d" % number)] * 3)

        await asyncio.gather(write(one, b"one"), write(two, b"two"))
        whole = await read_all(two, topic.EXPERIMENTS, at)
        assert [record.position for record in whole] == list(range(120))
        for records in await asyncio.gather(*taking):
            assert records == whole
        await one.close()
        await two.close()


class CutConformance:
    """Holds for a ledger from which the oldest records can be removed."""

    async def test_trimmed_records_are_gone(self, ledger: Ledger) -> None:
        """Those before a position are removed; positions go on, others are as they were."""
        at = partition_of("k", 4)
        await ledger.append([draft("k", b"%d" % n, topic.LOGS) for n in range(300)])
        await ledger.append([draft("k", b"other")])
        await ledger.trim(topic.LOGS, at, 200)
        await ledger.trim(topic.LOGS, at, 150)
        assert await ledger.start(topic.LOGS, at) == 200
        assert await ledger.end(topic.LOGS, at) == 300
        kept = await ledger.read(topic.LOGS, at, 200, 1000)
        assert [record.value for record in kept] == [b"%d" % n for n in range(200, 300)]
        for position in (0, 199):
            with pytest.raises(LedgerTrimmed) as trimmed:
                await ledger.read(topic.LOGS, at, position, 10)
            assert trimmed.value.first == 200
            with pytest.raises(LedgerTrimmed):
                await anext(ledger.follow(topic.LOGS, at, position))
        assert await read_all(ledger, topic.EXPERIMENTS, at) == [
            Record(topic.EXPERIMENTS, at, 0, "k", b"other")
        ]

    async def test_trimmed_under_followers(self, ledger: Ledger) -> None:
        """One that is behind gets the next record or learns that it is gone; one ahead goes on."""
        at = partition_of("k", 4)
        await ledger.append([draft("k", b"%d" % n, topic.LOGS) for n in range(10)])
        ahead, behind = (ledger.follow(topic.LOGS, at, 0) for _ in range(2))
        assert len(await take(ahead, 10)) == 10
        taken = await take(behind, 1)
        await ledger.append([draft("k", b"%d" % n, topic.LOGS) for n in range(10, 20)])
        await ledger.trim(topic.LOGS, at, 15)
        with contextlib.suppress(LedgerTrimmed):
            while len(taken) < 20:
                taken += await take(behind, 1)
        assert [record.position for record in taken] == list(range(len(taken)))
        late = ledger.follow(topic.LOGS, at, 15)
        await ledger.append([draft("k", b"20", topic.LOGS)])
        assert [record.position for record in await take(late, 6)] == list(range(15, 21))

    async def test_a_partition_trimmed_to_its_end_goes_on(self, ledger: Ledger) -> None:
        """Its next record gets the next position; what is not there yet cannot be removed."""
        at = partition_of("k", 4)
        await ledger.append([draft("k", name=topic.LOGS)] * 3)
        with pytest.raises(LedgerError, match="ends at 3: it cannot be trimmed to position 4"):
            await ledger.trim(topic.LOGS, at, 4)
        await ledger.trim(topic.LOGS, at, 3)
        assert await ledger.start(topic.LOGS, at) == await ledger.end(topic.LOGS, at) == 3
        assert await ledger.read(topic.LOGS, at, 3, 10) == []
        assert await ledger.append([draft("k", b"next", topic.LOGS)]) == [3]
        assert await ledger.read(topic.LOGS, at, 3, 10) == [
            Record(topic.LOGS, at, 3, "k", b"next")
        ]


class DurableCutConformance(CutConformance):
    """Holds for one that several may open."""

    async def test_trimmed_for_all_who_open_it(self, opener: Opener) -> None:
        """One that was open before goes on behind what another one trimmed to its end."""
        one, two = await opener(), await opener()
        at = partition_of("k", 4)
        await one.append([draft("k", name=topic.LOGS)] * 3)
        await two.trim(topic.LOGS, at, 3)
        await two.close()
        with pytest.raises(LedgerTrimmed):
            await one.read(topic.LOGS, at, 2, 10)
        assert await one.append([draft("k", name=topic.LOGS)]) == [3]
        await one.trim(topic.LOGS, at, 4)
        await one.close()
        again = await opener()
        assert await again.start(topic.LOGS, at) == await again.end(topic.LOGS, at) == 4
        assert await again.append([draft("k", b"next", topic.LOGS)]) == [4]
        assert [item.value for item in await again.read(topic.LOGS, at, 4, 10)] == [b"next"]
        await again.close()
