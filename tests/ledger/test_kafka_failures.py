"""Brokers that are killed, paused and lost: what was acknowledged stays, and work goes on."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from ledger.chain import Chain, hold
from rung.events import LedgerDamaged, LedgerError, LedgerUnavailable, partition_of, topic
from rung.ledger import Ledger
from rung.ledger.kafka import KafkaLedger, KafkaSettings, cluster, create, parse_address
from rung.ledger.kafka.admin import create_topics
from servers import kafka as kafka_server
from servers.kafka import KafkaBroker, KafkaCluster
from support.ledger.brokers import Ground, administration, once_there, settings
from support.ledger.conformance import draft, take

pytestmark = [
    pytest.mark.ledger,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not kafka_server.available(), reason=kafka_server.missing() or ""),
]

AT = partition_of("k", 4)


SOON = {"broker.session.timeout.ms": "2500"}
"""A broker that is gone is taken for dead after this."""
BOUND_S = 15.0
"""Calls that are to fail within a second or two do by then, also on a busy machine; by the time
that is theirs unless they are given another they do not."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Give an Apache Kafka to these tests alone; each leaves it running."""
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"), properties=SOON)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Give a cluster of three brokers; each test leaves all three running."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("three"), properties=SOON)
    cluster.start()
    yield cluster
    cluster.kill()


@asynccontextmanager
async def chains(ledger: Ledger, count: int) -> AsyncIterator[list[Chain]]:
    """Let some writers append beside each other, until the block ends."""
    made = [Chain(ledger, f"k{number}") for number in range(count)]
    async with AsyncExitStack() as stack:
        for chain in made:
            await stack.enter_async_context(chain)
        yield made


async def grown(chains: list[Chain], more: int = 20) -> None:
    """Wait until all writers got further."""
    await asyncio.gather(*(chain.grown(more) for chain in chains))


async def in_sync(cluster: KafkaCluster) -> None:
    """Wait until no replica is behind: while one is, whatever is lost next is the second."""
    async with administration(cluster.brokers[0]) as client:
        while True:
            partitions = [
                at for each in await client.describe_topics() for at in each["partitions"]
            ]
            if all(set(at["isr"]) == set(at["replicas"]) for at in partitions):
                return
            await asyncio.sleep(0.05)


async def test_killed_and_started_again(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, no number overtakes another, followers go on by themselves."""
    ledger = await Ground(kafka.url, tmp_path / "objects").open(timeout_s=30)
    followed = asyncio.create_task(
        take(ledger.follow(topic.EXPERIMENTS, partition_of("k0", 4), 0), 200)
    )
    async with chains(ledger, 6) as writers:
        for _ in range(2):
            await grown(writers)
            await asyncio.to_thread(kafka.kill)
            await asyncio.to_thread(kafka.start)
        await grown(writers)
        records = await followed
    assert [record.position for record in records[:200]] == list(range(200))
    await hold(ledger, writers)
    await ledger.close()


async def test_away(kafka: KafkaBroker, tmp_path: Path) -> None:
    """While the broker is away each call fails in bounded time and says so; a follower waits."""
    ledger = await Ground(kafka.url, tmp_path / "objects").open(timeout_s=1.5)
    await ledger.append([draft("k")])
    following = ledger.follow(topic.EXPERIMENTS, AT, 0)
    await take(following, 1)
    waiting = asyncio.create_task(take(following, 1))
    await asyncio.to_thread(kafka.kill)
    started = time.monotonic()
    failed = await asyncio.gather(
        ledger.append([draft("k")]),
        ledger.read(topic.EXPERIMENTS, AT, 0, 1),
        ledger.end(topic.EXPERIMENTS, AT),
        ledger.commit("c", topic.EXPERIMENTS, AT, 1),
        ledger.position("c", topic.EXPERIMENTS, AT),
        return_exceptions=True,
    )
    assert time.monotonic() - started < BOUND_S
    for error in failed:
        assert isinstance(error, LedgerUnavailable)
        assert kafka.address in str(error)
    await asyncio.to_thread(kafka.start)
    (position,) = await once_there(lambda: ledger.append([draft("k", b"back")]))
    assert (await waiting)[-1].position <= position
    await ledger.close()


async def test_paused(kafka: KafkaBroker, tmp_path: Path) -> None:
    """A broker that stands still fails appends in time, and what it does late breaks nothing."""
    ledger = await Ground(kafka.url, tmp_path / "objects").open(timeout_s=1.5, request_timeout_s=1)
    async with chains(ledger, 4) as writers:
        await grown(writers)
        kafka.pause()
        await asyncio.gather(*(chain.failed() for chain in writers))
        kafka.resume()
        await grown(writers)
    await hold(ledger, writers)
    await ledger.close()


async def test_memory_is_bounded(kafka: KafkaBroker, tmp_path: Path) -> None:
    """While the broker stands still appends wait for room instead of taking memory."""
    ledger = await Ground(kafka.url, tmp_path / "objects").open(timeout_s=3, buffer_bytes=1 << 20)
    kafka.pause()
    appends = [asyncio.create_task(ledger.append([draft("k", bytes(100_000))])) for _ in range(50)]
    await asyncio.sleep(0.2)
    assert ledger.buffered_bytes <= 1 << 20
    failed = await asyncio.gather(*appends, return_exceptions=True)
    assert all(isinstance(error, LedgerUnavailable) for error in failed)
    assert ledger.buffered_bytes == 0
    kafka.resume()
    await once_there(lambda: ledger.append([draft("k")]))
    await ledger.close()


async def test_what_was_sent_counts_until_it_is_settled(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """A producer keeps the batch that it has: it takes room, for others too, and no more."""
    limit = 500_000
    ledger = await Ground(kafka.url, tmp_path / "objects").open(timeout_s=3, buffer_bytes=limit)
    await ledger.append([draft("k")])
    kafka.pause()

    async def crowd() -> None:
        values = [ledger.append([draft("k", bytes(100_000))]) for _ in range(50)]
        failed = await asyncio.gather(*values, return_exceptions=True)
        assert all(isinstance(error, LedgerUnavailable) for error in failed)

    first = asyncio.create_task(crowd())
    await asyncio.sleep(0.2)
    assert 100_000 < ledger.buffered_bytes <= limit
    await first
    kept = ledger.buffered_bytes
    assert 100_000 < kept <= limit
    await crowd()
    assert ledger.buffered_bytes == kept
    kafka.resume()
    await once_there(lambda: ledger.append([draft("k", b"last")]))
    assert ledger.buffered_bytes == 0
    records = await ledger.read(topic.EXPERIMENTS, AT, 0, 99)
    assert sum(len(record.value) for record in records[1:-1]) <= kept
    await ledger.close()


async def test_a_large_record_among_busy_partitions(kafka: KafkaBroker, tmp_path: Path) -> None:
    """A record that fills a broker's answer comes, although others never cease to have more."""
    many = 12
    large = many - 1
    ledger = await Ground(kafka.url, tmp_path / "objects", partitions=many).open(timeout_s=60)
    keys = {partition_of(key, many): key for key in (f"k{number}" for number in range(500))}
    ends = dict.fromkeys(range(many), 0)
    found = asyncio.Event()

    async def keep_busy(at: int) -> None:
        while not found.is_set():
            with contextlib.suppress(LedgerUnavailable):  # the broker is as busy as can be
                await ledger.append([draft(keys[at], bytes(100_000))] * 5)

    async def follow(at: int) -> None:
        async for records in ledger.follow(topic.EXPERIMENTS, at, 0):
            assert records[0].position == ends[at]
            ends[at] = records[-1].position + 1
            if at == large:
                found.set()

    busy = [asyncio.create_task(keep_busy(at)) for at in range(many) if at != large]
    following = [asyncio.create_task(follow(at)) for at in range(many)]
    while not all(ends[at] for at in range(many) if at != large):
        failed, _ = await asyncio.wait(following, timeout=0.05)
        assert not failed, failed
    await once_there(lambda: ledger.append([draft(keys[large], bytes(3_000_000))]))
    finding = asyncio.create_task(found.wait())
    await asyncio.wait([finding, *following], return_when=asyncio.FIRST_COMPLETED)
    assert found.is_set(), following
    await asyncio.gather(*busy)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    await ledger.close()


async def test_no_cluster(tmp_path: Path) -> None:
    """Where nobody listens, opening fails in bounded time with the address and what to check."""
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1:1/rung.*SECURITY_PROTOCOL"):
        await KafkaLedger.open("kafka://127.0.0.1:1", settings=KafkaSettings(timeout_s=1))
    assert time.monotonic() - started < BOUND_S


async def test_one_of_three_killed(three: KafkaCluster, tmp_path: Path) -> None:
    """A broker is killed and returns while writers append: all get on, with nothing lost."""
    ledger = await Ground(three.url, tmp_path / "objects", partitions=6).open(
        timeout_s=30, request_timeout_s=3
    )
    async with chains(ledger, 12) as writers:
        await grown(writers)
        await asyncio.to_thread(three.brokers[0].kill)
        await grown(writers)
        await asyncio.to_thread(three.brokers[0].start)
        await grown(writers)
    assert sum(chain.failures for chain in writers) == 0
    await hold(ledger, writers)
    await ledger.close()


async def test_one_of_three_paused(three: KafkaCluster, tmp_path: Path) -> None:
    """Appends and followers pass over a broker that stands still, and over its waking."""
    ledger = await Ground(three.url, tmp_path / "objects", partitions=6).open(
        timeout_s=30, request_timeout_s=3
    )
    key = next(f"k{n}" for n in range(99) if partition_of(f"k{n}", 6) == 0)
    following = ledger.follow(topic.EXPERIMENTS, 0, 0)
    async with chains(ledger, 12) as writers:
        for broker in three.brokers[1:]:
            await grown(writers)
            await in_sync(three)
            broker.pause()
            await grown(writers)
            (position,) = await ledger.append([draft(key, b"0")])
            broker.resume()
            records = await take(following, 1)
            while records[-1].position < position:
                records += await take(following, 1)
            await grown(writers)
    assert sum(chain.failures for chain in writers) == 0
    await hold(ledger, [chain for chain in writers if chain.key != key])
    await ledger.close()


async def test_a_paused_broker_holds_up_its_own_partitions_alone(
    three: KafkaCluster, tmp_path: Path
) -> None:
    """Those that other brokers lead are appended to, read and followed as before meanwhile."""
    url = Ground(three.url, tmp_path / "objects").url
    chosen = settings(timeout_s=60, request_timeout_s=60)  # whoever waits for it waits for long
    await create(url, chosen, partitions=6, replication=1)
    ledger = await KafkaLedger.open(url, settings=chosen)
    keys = {partition_of(f"k{n}", 6): f"k{n}" for n in range(99)}
    for key in keys.values():
        await ledger.append([draft(key)])
    following = [ledger.follow(topic.EXPERIMENTS, at, 0) for at in range(6)]
    for follower in following:
        await take(follower, 1)
    async with administration(three.brokers[0]) as client:
        (found,) = await client.describe_topics([parse_address(url).topic(topic.EXPERIMENTS)])
    leaders = {item["partition"]: item["leader"] for item in found["partitions"]}
    paused = three.brokers[1]
    live = [at for at in range(6) if leaders[at] != paused.number]
    assert 0 < len(live) < 6
    paused.pause()
    try:
        stuck = [
            asyncio.create_task(ledger.append([draft(keys[at])])) for at in {*range(6)} - {*live}
        ]
        async with asyncio.timeout(BOUND_S):
            for number in range(1, 11):
                for at in live:
                    assert await ledger.append([draft(keys[at])]) == [number]
                    assert (await take(following[at], 1))[-1].position == number
                    assert len(await ledger.read(topic.EXPERIMENTS, at, number, 1)) == 1
        assert not any(task.done() for task in stuck)
    finally:
        paused.resume()
    await asyncio.gather(*stuck)
    await ledger.close()


async def test_topics_are_not_made_by_a_paused_broker(kafka: KafkaBroker) -> None:
    """What kafka-python could not ask is an error of the ledger's own, which may pass."""
    address = parse_address(f"{kafka.url}/still")
    chosen = settings(timeout_s=1, request_timeout_s=0.3)
    connected = await once_there(partial(cluster.connect, address, chosen))
    kafka.pause()
    try:
        said = ""
        while "Unable to boot" not in said:  # on a busy machine it may not come to be asked at all
            with pytest.raises(LedgerUnavailable, match="making topics: kafka://") as raised:
                await create_topics(
                    connected, {"t": {"num_partitions": 1, "replication_factor": 1}}
                )
            said = str(raised.value)
    finally:
        kafka.resume()
    await connected.close()


async def emptied(broker: KafkaBroker) -> None:
    """Kill a broker, and start it on an empty folder."""
    await asyncio.to_thread(broker.kill)
    shutil.rmtree(broker.folder / "data")
    await asyncio.to_thread(broker.start)


async def test_a_broker_that_forgets(kafka: KafkaBroker, tmp_path: Path) -> None:
    """A cluster that comes back empty is damage, for those who follow and those who read."""
    ground = Ground(kafka.url, tmp_path / "objects")
    ledger = await ground.open(timeout_s=10)
    await ledger.append([draft("k")] * 3)
    following = ledger.follow(topic.EXPERIMENTS, AT, 0)
    await take(following, 3)
    waiting = asyncio.create_task(take(following, 1))
    await emptied(kafka)
    with pytest.raises(LedgerDamaged, match="experiments is not on"):
        await waiting
    with pytest.raises(LedgerDamaged, match="experiments is not on"):
        await ledger.append([draft("k")])
    await ledger.close()
    with pytest.raises(LedgerError, match="cluster init"):
        await ground.open()


async def test_a_ledger_made_anew(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who followed a ledger that was lost and made again does not go on in the new one."""
    monkeypatch.setattr(cluster, "_GONE_S", 600.0)  # however long it takes to make it again
    ground = Ground(kafka.url, tmp_path / "objects")
    ledger = await ground.open(timeout_s=10)
    await ledger.append([draft("k")] * 3)
    following = ledger.follow(topic.EXPERIMENTS, AT, 0)
    await take(following, 3)
    waiting = asyncio.create_task(take(following, 1))
    await emptied(kafka)
    anew = await ground.again().open()
    await anew.append([draft("k")])
    with pytest.raises(LedgerDamaged, match="ends at 1, before position 3"):
        await waiting
    with pytest.raises(LedgerDamaged, match="ends at 1, before position 3"):
        await ledger.read(topic.EXPERIMENTS, AT, 3, 1)
    with pytest.raises(LedgerDamaged, match="experiments is not on"):
        await ledger.append([draft("k")])
    assert anew.id != ledger.id
    await ledger.close()
    await anew.close()
