"""How fast the ledger is on Apache Kafka.

Everything is measured in turns with a plain aiokafka loop on the same broker, which must have the
same acknowledgements (acks=all). Without `--ledger` a broker is started for it, on this machine.

    python -m benchmarks.record.ledger_kafka [--ledger URL]
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from benchmarks.figures import figure
from benchmarks.record.ledger import make_drafts

from rung.events import decode, partition_of
from rung.ledger import Draft
from rung.ledger.kafka import KafkaLedger, KafkaSettings, create, parse_address

SECONDS = 1.0
ROUNDS = 3
PARTITIONS = 4
KINDS = [(1, 1), (16, 1), (128, 1), (1, 1000), (4, 1000)]

Append = Callable[[Sequence[Draft]], Awaitable[object]]


@contextlib.contextmanager
def broker(url: str | None) -> Iterator[str]:
    """Give the URL of a broker, started if none is named."""
    if url is not None:
        yield url
        return
    from servers.kafka import KafkaBroker

    with tempfile.TemporaryDirectory() as folder:
        started = KafkaBroker(Path(folder))
        started.start()
        try:
            yield f"{started.url}/bench"
        finally:
            started.kill()


def plain(producer: AIOKafkaProducer, prefix: str) -> Append:
    """Return what a program without this ledger would do."""

    async def append(drafts: Sequence[Draft]) -> None:
        waiting = [
            await producer.send(
                f"{prefix}.{draft.topic}",
                draft.value,
                draft.key.encode(),
                partition_of(draft.key, PARTITIONS),
            )
            for draft in drafts
        ]
        for future in waiting:
            await future

    return append


async def appends(append: Append, drafts: list[Draft], writers: int, batch: int) -> float:
    """Return the appends per second of several writers, each awaiting its own."""
    count = 0
    started = time.perf_counter()

    async def write(number: int) -> None:
        nonlocal count
        at = number * batch
        while time.perf_counter() - started < SECONDS:
            at = (at + batch) % (len(drafts) - batch)
            await append(drafts[at : at + batch])
            count += batch

    await asyncio.gather(*(write(number) for number in range(writers)))
    return count / (time.perf_counter() - started)


async def measure_appends(ledger: KafkaLedger, url: str, drafts: list[Draft]) -> None:
    """Print appends per second, each kind in turns with the plain loop."""
    address = parse_address(url)
    producer = AIOKafkaProducer(
        bootstrap_servers=[str(server) for server in address.servers],
        acks="all",
        max_batch_size=1 << 20,
    )
    await producer.start()
    other = plain(producer, address.prefix)
    await appends(ledger.append, drafts, 16, 100)  # the broker's own warming up
    for kind in KINDS:
        ours, theirs = [], []
        for _ in range(ROUNDS):
            theirs.append(await appends(other, drafts, *kind))
            ours.append(await appends(ledger.append, drafts, *kind))
        writers, batch = kind
        many = "" if batch == 1 else f" in batches of {batch}"
        name = f"{writers} writer{'s' * (writers > 1)}{many}"
        ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
        figure(
            f"appends on Kafka, {name}",
            median(ours),
            "events/s",
            beside=f"{ratio:.2f} of a plain aiokafka loop",
        )
    await producer.stop()


async def read_all(ledger: KafkaLedger, each: Callable[[bytes], object] | None) -> float:
    """Read all partitions; return records per second."""
    count = 0
    started = time.perf_counter()
    for partition in range(PARTITIONS):
        position = 0
        while records := await ledger.read("experiments", partition, position, 2000):
            count += len(records)
            position = records[-1].position + 1
            if each is not None:
                for record in records:
                    each(record.value)
    return count / (time.perf_counter() - started)


async def follow_all(ledger: KafkaLedger) -> float:
    """Follow all partitions up to their ends at once; return records per second."""
    ends = [await ledger.end("experiments", part) for part in range(PARTITIONS)]
    started = time.perf_counter()

    async def follow(partition: int, end: int) -> None:
        if end:
            async for records in ledger.follow("experiments", partition, 0):
                if records[-1].position + 1 >= end:
                    return

    await asyncio.gather(*(follow(part, end) for part, end in enumerate(ends)))
    return sum(ends) / (time.perf_counter() - started)


async def consume_all(url: str, ends: list[int]) -> float:
    """Read all partitions with a plain consumer; return records per second."""
    address = parse_address(url)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=[str(server) for server in address.servers],
        auto_offset_reset="none",
        max_partition_fetch_bytes=1 << 20,
    )
    await consumer.start()
    places = [TopicPartition(f"{address.prefix}.experiments", part) for part in range(PARTITIONS)]
    consumer.assign(places)
    for place in places:
        consumer.seek(place, 0)
    count = 0
    started = time.perf_counter()
    while count < sum(ends):
        for records in (await consumer.getmany(timeout_ms=1000, max_records=2000)).values():
            count += len(records)
    spent = time.perf_counter() - started
    await consumer.stop()
    return count / spent


async def measure_reads(ledger: KafkaLedger, url: str) -> None:
    """Print reads per second beside those of a plain consumer."""
    ends = [await ledger.end("experiments", part) for part in range(PARTITIONS)]
    theirs = await consume_all(url, ends)
    for name, measured in (
        ("read", await read_all(ledger, None)),
        ("read and decode", await read_all(ledger, decode)),
        ("follow", await follow_all(ledger)),
    ):
        figure(
            f"{name} a ledger on Kafka of {sum(ends):,} events",
            measured,
            "events/s",
            beside=f"{measured / theirs:.2f} of a plain aiokafka consumer",
        )


async def measure_waking(ledger: KafkaLedger, draft: Draft) -> None:
    """Print how long an append takes, and until a follower has it."""
    (position,) = await ledger.append([draft])
    partition = partition_of(draft.key, PARTITIONS)
    following = ledger.follow(draft.topic, partition, position + 1)
    acknowledged, followed = [], []
    for _ in range(200):
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0.002)
        started = time.perf_counter()
        await ledger.append([draft])
        acknowledged.append(time.perf_counter() - started)
        await waiting
        followed.append(time.perf_counter() - started)
    print()
    for name, spent in (("acknowledged", acknowledged), ("followed", followed)):
        spent.sort()
        middle, late = spent[len(spent) // 2], spent[len(spent) * 99 // 100]
        print(f"append until {name:<20}{middle * 1e3:>8.1f} ms median{late * 1e3:>8.1f} ms p99")


async def main(url: str) -> None:
    """Measure it all."""
    settings = KafkaSettings.from_environment()
    await create(url, settings, partitions=PARTITIONS)
    ledger = await KafkaLedger.open(url, settings=settings)
    drafts = make_drafts(20_000)
    print(f"{PARTITIONS} partitions, events of about {len(drafts[7].value)} bytes\n")
    await measure_appends(ledger, url, drafts)
    await measure_waking(ledger, drafts[0])
    await measure_reads(ledger, url)
    await ledger.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ledger", metavar="URL", help="of a cluster to measure; it is written to"
    )
    with broker(parser.parse_args().ledger) as found:
        asyncio.run(main(found))
