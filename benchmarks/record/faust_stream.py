"""What an event costs in a Faust stream.

A topic of one partition is passed in turns through an agent of a Faust application, which
acknowledges each event, and through a follower of the ledger, which commits behind each batch, as
relays and sinks do. Without `--ledger` a broker is started for it, on this machine. Processor time
is that of the whole process, the thread of Faust's consumer included.

    python -m benchmarks.record.faust_stream [--ledger URL]
"""

import argparse
import asyncio
import tempfile
import time
import uuid
from statistics import median
from typing import Any

import faust
from benchmarks.figures import figure
from benchmarks.record.ledger import make_drafts
from benchmarks.record.ledger_kafka import broker

from rung.events import topic
from rung.ledger.kafka import KafkaLedger, KafkaSettings, create, parse_address

EVENTS = 20_000
ROUNDS = 3

Spent = tuple[float, float]
"""Seconds, and seconds of the processor, for all events."""


def clocks() -> Spent:
    """Return both clocks."""
    return time.perf_counter(), time.process_time()


async def through_faust(url: str, end: int) -> Spent:
    """Pass all events through an agent, from the first one that comes."""
    address = parse_address(url)
    with tempfile.TemporaryDirectory() as folder:
        app = faust.App(
            address.topic(f"stream-{uuid.uuid4().hex}"),
            broker=[f"kafka://{server}" for server in address.servers],
            consumer_auto_offset_reset="earliest",
            autodiscover=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            web_enabled=False,
            stream_wait_empty=False,
            datadir=folder,
            loop=asyncio.get_running_loop(),
        )
        channel = app.topic(
            address.topic(topic.EXPERIMENTS),
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
        )
        began: list[Spent] = []
        ended = asyncio.Event()

        async def work(stream: Any) -> None:
            async for event in stream.noack().events():
                if not began:
                    began.append(clocks())
                event.ack()
                if event.message.offset + 1 == end:
                    began.append(clocks())
                    ended.set()

        app.agent(channel, name="passing")(work)
        await app.start()
        await ended.wait()
        await app.stop()
    (first_s, first_cpu_s), (last_s, last_cpu_s) = began
    return last_s - first_s, last_cpu_s - first_cpu_s


async def through_follower(ledger: KafkaLedger, end: int) -> Spent:
    """Pass all events through a follower."""
    first_s, first_cpu_s = clocks()
    async for records in ledger.follow(topic.EXPERIMENTS, 0, 0):
        position = records[-1].position + 1
        await ledger.commit("passing", topic.EXPERIMENTS, 0, position)
        if position >= end:
            break
    last_s, last_cpu_s = clocks()
    return last_s - first_s, last_cpu_s - first_cpu_s


async def main(url: str) -> None:
    """Measure both in turns."""
    settings = KafkaSettings.from_environment()
    await create(url, settings, partitions=1)
    ledger = await KafkaLedger.open(url, settings=settings)
    drafts = [it for it in make_drafts(EVENTS) if it.topic == topic.EXPERIMENTS]
    for at in range(0, len(drafts), 1000):
        await ledger.append(drafts[at : at + 1000])
    end = await ledger.end(topic.EXPERIMENTS, 0)
    spent: dict[str, list[Spent]] = {"faust stream": [], "follower": []}
    for _ in range(ROUNDS):
        spent["faust stream"].append(await through_faust(url, end))
        spent["follower"].append(await through_follower(ledger, end))
    await ledger.close()
    print(f"{end:,} events of about {len(drafts[7].value)} bytes, one partition\n")
    (faust_s, faust_cpu_s), (seconds, cpu_s) = (
        [median(values) for values in zip(*rounds, strict=True)] for rounds in spent.values()
    )
    figure(
        "an event through a follower on Kafka",
        cpu_s / end * 1e6,
        "µs of CPU",
        beside=f"{faust_cpu_s / end * 1e6:.1f} through a Faust stream; {end / seconds:,.0f} and "
        f"{end / faust_s:,.0f} events/s",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ledger", metavar="URL", help="of a cluster to measure; it is written to"
    )
    with broker(parser.parse_args().ledger) as found:
        asyncio.run(main(found))
