"""A ledger's topics on a cluster: made, checked, and refused where they do not fit."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition
from kafka.admin import KafkaAdminClient
from structlog.testing import capture_logs

from rung.events import (
    TOPICS,
    EventTooLarge,
    LedgerDamaged,
    LedgerError,
    LedgerTrimmed,
    partition_of,
    topic,
)
from rung.ledger import Draft
from rung.ledger.export.export import history
from rung.ledger.kafka import Finding, KafkaLedger, check, create, parse_address
from rung.ledger.tail import tail
from servers.kafka import KafkaBroker
from support.ledger.brokers import Ground, administration, settings
from support.ledger.conformance import draft, read_all, take

pytestmark = pytest.mark.ledger

AT = partition_of("k", 4)


async def trim(broker: KafkaBroker, url: str, name: str, partition: int, before: int) -> None:
    """Remove records as retention does."""
    place = TopicPartition(parse_address(url).topic(name), partition)
    async with administration(broker) as client:
        await client.delete_records({place: RecordsToDelete(before)})


async def limit_records(broker: KafkaBroker, url: str, size: int) -> None:
    """Lower how large a record of `experiments` may be, and wait until that holds."""
    kind, name = ConfigResourceType.TOPIC, parse_address(url).topic(topic.EXPERIMENTS)
    async with administration(broker) as client:
        await client.alter_configs([ConfigResource(kind, name, {"max.message.bytes": str(size)})])
    await found(url, lambda lines: any(f"max.message.bytes is {size}," in line for line in lines))


async def found(url: str, holds: Callable[[list[str]], bool]) -> list[Finding]:
    """Check a ledger until what is found is as expected: a cluster learns by and by."""
    while True:
        findings = await check(
            url, settings(), replication=3, retention={topic.METRICS: timedelta(days=7)}
        )
        if holds([str(finding) for finding in findings]):
            return findings
        await asyncio.sleep(0.05)


async def test_made_once(ground: Ground) -> None:
    """Two who make a ledger at the same time agree on it; making it again changes nothing."""
    url = ground.url
    first, second = await asyncio.gather(
        create(url, settings(), partitions=3), create(url, settings(), partitions=3)
    )
    assert first.id == second.id
    assert {*first.made, *second.made} == {
        parse_address(url).topic(name) for name in (*TOPICS, "ledger")
    }
    again = await create(url, settings())
    assert (again.id, again.partitions, again.made) == (first.id, 3, [])
    ledger = await KafkaLedger.open(url, settings=settings())
    assert ledger.id == first.id
    assert [ledger.partitions(name) for name in TOPICS] == [3] * len(TOPICS)
    await ledger.close()


async def test_ledgers_beside_each_other(shared_kafka: KafkaBroker, tmp_path: Path) -> None:
    """Ledgers of different prefixes on one cluster share nothing, snapshots included."""
    one, two = [await Ground(shared_kafka.url, tmp_path).open() for _ in range(2)]
    assert one.id != two.id
    await one.append([draft("k")])
    await one.save_snapshot("searcher", 0, b"one")
    await one.commit("c", topic.EXPERIMENTS, AT, 1)
    assert await two.end(topic.EXPERIMENTS, AT) == 0
    assert await two.snapshot("searcher", 0) is None
    assert await two.position("c", topic.EXPERIMENTS, AT) == 0
    await one.close()
    await two.close()


async def test_another_number_of_partitions(ground: Ground) -> None:
    """The number of partitions is the ledger's for ever."""
    await (await ground.open()).close()
    with pytest.raises(LedgerError, match="has 4 partitions per topic, not 8"):
        await create(ground.url, settings(), partitions=8)


async def test_not_made_yet(ground: Ground) -> None:
    """A ledger that nobody made is refused, with the command that makes it."""
    with pytest.raises(LedgerError, match=f"rung cluster init --ledger {ground.url}"):
        await KafkaLedger.open(ground.url, settings=settings())
    findings = await check(ground.url, settings())
    assert {finding.found for finding in findings} == {"missing"}
    assert len(findings) == len(TOPICS) + 1


async def test_nothing_to_find(ground: Ground) -> None:
    """What was just made is as it should be."""
    await (await ground.open()).close()
    assert await check(ground.url, settings()) == []


async def test_what_differs_is_found(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """Grave is what loses facts or decisions, or refuses events; metrics may be kept shorter."""
    await (await ground.open()).close()
    name = parse_address(ground.url).topic
    async with administration(shared_kafka) as client:
        await client.alter_configs(
            [
                ConfigResource(
                    ConfigResourceType.TOPIC,
                    name(topic.EXPERIMENTS),
                    {
                        "retention.ms": "1000",
                        "retention.bytes": "1000",
                        "cleanup.policy": "compact",
                        "unclean.leader.election.enable": "true",
                    },  # what is not named here goes back to the broker's default
                )
            ]
        )
        await client.create_partitions({name(topic.LOGS): NewPartitions(6)})
    partitions = f"{name(topic.LOGS)}: partitions is 6, should be 4"
    findings = await found(ground.url, lambda lines: partitions in lines)
    lines = [str(finding) for finding in findings]
    assert f"{name(topic.EXPERIMENTS)}: retention.ms is 1000, should be -1" in lines
    assert f"{name(topic.EXPERIMENTS)}: cleanup.policy is compact, should be delete" in lines
    week, month = 7 * 24 * 3600 * 1000, 30 * 24 * 3600 * 1000
    assert f"{name(topic.METRICS)}: retention.ms is {month}, should be {week}" in lines
    assert sum(finding.setting == "replication" for finding in findings) == len(TOPICS) + 1
    assert sorted(finding.setting for finding in findings if finding.grave) == [
        "cleanup.policy",
        "max.message.bytes",
        "partitions",
        "retention.bytes",
        "retention.ms",
        "unclean.leader.election.enable",
    ]
    with pytest.raises(LedgerError, match="logs has 6 partitions; the ledger was made with 4"):
        await ground.open()


async def test_a_topic_made_by_hand(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """It is not taken for right: it has the broker's defaults."""
    full = parse_address(ground.url).topic(topic.POOLS)

    def by_hand() -> None:
        with KafkaAdminClient(bootstrap_servers=shared_kafka.address) as client:
            client.create_topics({full: {"num_partitions": 4, "replication_factor": 1}})

    await asyncio.to_thread(by_hand)
    with capture_logs() as logged:
        await (await ground.open()).close()
    findings = await check(ground.url, settings())
    assert {finding.topic for finding in findings} == {full}
    assert f"{full}: max.message.bytes is 1048588, should be 8388608" in map(str, findings)
    assert logged == []


async def test_an_answer_that_takes_long(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is not empty is not taken for empty: the ledger is there."""
    ledger = await ground.open()
    look = AIOKafkaConsumer.getmany
    told: Iterator[dict[Any, Any]] = iter([{}, {}])

    async def hurry(consumer: Any, *places: Any, **limits: int) -> Any:
        found = await look(consumer, *places, **limits)
        return next(told, found)

    monkeypatch.setattr(AIOKafkaConsumer, "getmany", hurry)
    again = await ground.open()
    assert (next(told, None), again.id) == (None, ledger.id)
    await again.close()
    await ledger.close()


async def test_positions_are_kept_for_good(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """The cluster does not forget a position after its own retention of offsets, a week."""
    ledger = await ground.open()
    await ledger.commit("c", topic.EXPERIMENTS, AT, 7)
    await ledger.close()
    group = parse_address(ground.url).topic("c").encode()
    consumer = AIOKafkaConsumer(
        "__consumer_offsets",
        bootstrap_servers=shared_kafka.address,
        auto_offset_reset="earliest",
        exclude_internal_topics=False,
    )
    await consumer.start()
    async with asyncio.timeout(30):
        async for message in consumer:
            if message.key and group in message.key:
                break
    await consumer.stop()
    version, position = struct.unpack_from(">hq", message.value)
    committed_ms, expires_ms = struct.unpack(">qq", message.value[-16:])
    assert (version, position) == (1, 7)  # the version that says when it expires
    assert expires_ms - committed_ms > timedelta(days=50 * 365) / timedelta(milliseconds=1)


async def test_topics_that_are_gone(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """A topic that is deleted under an open ledger is damage, and missing at the next opening."""
    ledger = await ground.open()
    await ledger.append([draft("k", name=topic.POOLS)])
    following = ledger.follow(topic.POOLS, AT, 0)
    await take(following, 1)
    waiting = asyncio.create_task(take(following, 1))
    async with administration(shared_kafka) as client:
        await client.delete_topics([parse_address(ground.url).topic(topic.POOLS)])
    with pytest.raises(LedgerDamaged, match="pools is not on"):
        await waiting
    with pytest.raises(LedgerDamaged, match="pools is not on"):
        await ledger.append([draft("k", name=topic.POOLS)])
    await ledger.append([draft("k")])
    await ledger.close()
    with pytest.raises(LedgerError, match=r"pools is missing.*cluster init"):
        await ground.open()


async def test_a_topic_that_came_back_empty(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """One that is deleted and made again under an open ledger lost its records: it is damage."""
    ledger = await ground.open()
    await ledger.append([draft("k", name=topic.POOLS)])
    following = ledger.follow(topic.POOLS, AT, 0)
    await take(following, 1)
    waiting = asyncio.create_task(take(following, 1))
    full = parse_address(ground.url).topic(topic.POOLS)
    async with administration(shared_kafka) as client:
        await client.delete_topics([full])
        await client.create_topics([NewTopic(full, 4, 1)])
    with pytest.raises(LedgerDamaged, match="pools is not on"):
        await waiting
    with pytest.raises(LedgerDamaged, match="pools is not on"):
        await ledger.read(topic.POOLS, AT, 1, 1)
    with pytest.raises(LedgerDamaged, match="pools is not on"):
        await ledger.append([draft("k", name=topic.POOLS)])
    await ledger.close()


async def test_trimmed(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """Below where retention took records away, reading names the first that exists."""
    ledger = await ground.open()
    await ledger.append([draft("k", b"%d" % number, topic.METRICS) for number in range(10)])
    following = ledger.follow(topic.METRICS, AT, 2)
    await trim(shared_kafka, ground.url, topic.METRICS, AT, before=7)
    assert await ledger.start(topic.METRICS, AT) == 7
    for reading in (
        ledger.read(topic.METRICS, AT, 6, 10),
        anext(ledger.follow(topic.METRICS, AT, 0)),
        anext(following),
    ):
        with pytest.raises(LedgerTrimmed, match="the first one is 7") as raised:
            await reading
        assert raised.value.first == 7
    records = await ledger.read(topic.METRICS, AT, 7, 10)
    assert [record.value for record in records] == [b"7", b"8", b"9"]
    assert await ledger.append([draft("k", name=topic.METRICS)]) == [10]
    await ledger.close()


async def test_trimmed_before_a_follower(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """All that goes on from the start of a topic goes on where it starts now."""
    ledger = await ground.open()
    await ledger.append([draft("k", b"{}", name) for name in (topic.METRICS, topic.LOGS)] * 5)
    await trim(shared_kafka, ground.url, topic.METRICS, AT, before=3)
    kept = [record.position async for record in history(ledger) if record.topic == topic.METRICS]
    assert kept == [3, 4]
    tailed = tail(ledger, [topic.METRICS], start="beginning")
    assert (await anext(tailed)).position == 3
    await tailed.aclose()
    await ledger.close()


async def test_old_heartbeats_are_passed_over(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """Nobody misses a heartbeat: reading and following begin at the oldest that is there."""
    ledger = await ground.open()
    drafts = [Draft(topic.HEARTBEATS, "k", b"%d" % number) for number in range(10)]
    await ledger.append(drafts)
    following = ledger.follow(topic.HEARTBEATS, AT, 4)
    await trim(shared_kafka, ground.url, topic.HEARTBEATS, AT, before=8)
    assert [r.position for r in await ledger.read(topic.HEARTBEATS, AT, 0, 10)] == [8, 9]
    assert [record.position for record in await take(following, 2)] == [8, 9]
    await ledger.close()


async def test_too_large(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """A record that the topic does not take is refused with its size, the limit and the fix."""
    await (await ground.open()).close()
    await limit_records(shared_kafka, ground.url, 5000)
    ledger = await ground.open()
    said = r"6001 bytes.*5000 bytes.*max\.message\.bytes"
    with pytest.raises(EventTooLarge, match=said) as raised:
        await ledger.append([draft("k", b"small"), draft("k", bytes(6000))])
    assert not raised.value.retriable
    assert await ledger.end(topic.EXPERIMENTS, AT) == 0
    many = [draft("k", bytes([number]) * 4000) for number in range(20)]
    assert await ledger.append(many) == list(range(20))
    assert [r.value for r in await read_all(ledger, topic.EXPERIMENTS, AT)] == [
        value for _, _, value in many
    ]
    await ledger.close()


async def test_a_limit_that_shrank(ground: Ground, shared_kafka: KafkaBroker) -> None:
    """A limit lowered under an open ledger is the cluster's refusal, and harms nothing else."""
    ledger = await ground.open()
    await limit_records(shared_kafka, ground.url, 5000)
    with pytest.raises(EventTooLarge, match=r"refuses a batch.*max\.message\.bytes"):
        await ledger.append([draft("k", bytes(6000))])
    assert await ledger.append([draft("k", bytes(1000))]) == [0]
    await ledger.close()


async def test_snapshots_want_a_store(ground: Ground) -> None:
    """Without an object store a service learns at its start that it needs one."""
    await (await ground.open()).close()
    ledger = await KafkaLedger.open(ground.url, settings=settings())
    with pytest.raises(LedgerError, match="--objects"):
        await ledger.snapshot("state/searcher", 0)
    await ledger.close()


async def test_a_retention_of_nothing(ground: Ground) -> None:
    """A topic that does not exist is refused by name."""
    with pytest.raises(LedgerError, match="weather"):
        await create(ground.url, settings(), retention={"weather": None})
