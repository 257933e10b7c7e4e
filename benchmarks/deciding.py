"""Events a second through the searcher and the scheduler on Apache Kafka, one process each.

Facts lie in the ledger; a decider starts, folds and decides them, and appends its decisions. How
that grows from 1 to 8 partitions, and from 10 to 10,000 open trials or waiting allocations. The
peer is a plain aiokafka loop on the same broker that reads the same facts in batches and sends as
many messages as there are decisions, of their size, without looking at either.

    python benchmarks/deciding.py [--facts 20000]
"""

import argparse
import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.evolve import config

from rung.events import Payload, encode, fact, partition_of
from rung.events.allocation import AgentJoined, AllocationReleased, AllocationRequested, Slot
from rung.events.experiment import ExperimentSubmitted
from rung.events.trial import RunSpec, TrialExited, TrialValidated
from rung.host import Process, host
from rung.ledger import Draft
from rung.ledger.kafka import KafkaLedger, KafkaSettings, create, parse_address
from rung.objects import FolderStore
from rung.scheduler.machine import Scheduler
from rung.searcher.machine import Searcher

ROOT = Path(__file__).resolve().parent.parent
AIM = 10_000
PARTITIONS = (1, 2, 4, 8)
OPEN = (10, 100, 1_000, 10_000)
SLOTS = 8

Workload = Callable[[str, int, int], Iterator[Payload]]


def searches(key: str, facts: int, open_trials: int) -> Iterator[Payload]:
    """Yield an experiment whose trials validate and end, one after another."""
    limits = {"max_trials": facts, "max_concurrent_trials": open_trials, "max_time": 1}
    settings = config(facts)
    settings["searcher"] |= limits
    yield ExperimentSubmitted(experiment_id=key, config=settings, source="", code_digest=None)
    for index in range(facts // 2):
        trial: dict[str, Any] = {"experiment_id": key, "trial_id": f"{key}.{index}", "run": 1}
        yield TrialValidated(**trial, steps_completed=1, metrics={"loss": 1.0 / (1 + index)})
        yield TrialExited(
            **trial, agent_id="a", outcome="finished", exit_code=0, signal=None, message=""
        )


def placements(key: str, facts: int, waiting: int) -> Iterator[Payload]:
    """Yield a pool in which one allocation after another is asked for and released."""
    slots = [Slot(id=number, kind="cpu", name="CPU") for number in range(SLOTS)]
    yield AgentJoined(pool=key, agent_id="a", incarnation=1, hostname="a", slots=slots)
    for index in range(waiting + SLOTS):
        yield _requested(key, index)
    for index in range(facts // 2):
        yield AllocationReleased(
            pool=key, allocation_id=f"bench.{index}.1", agent_id="a", incarnation=1
        )
        yield _requested(key, waiting + SLOTS + index)


def _requested(pool: str, index: int) -> AllocationRequested:
    spec = RunSpec(
        experiment_id="bench",
        trial_id=f"bench.{index}",
        trial_index=index,
        run=1,
        hparams={"lr": 0.1},
        seed=1,
        length=10,
        time_metric="batches",
        restore=[],
        code_digest=None,
        config={},
    )
    return AllocationRequested(
        pool=pool,
        allocation_id=f"bench.{index}.1",
        experiment_id="bench",
        slots=1,
        priority=42,
        max_slots=None,
        spec=spec,
    )


WORK: dict[str, tuple[Process[Any], Workload]] = {
    "searcher": (Searcher(), searches),
    "scheduler": (Scheduler(), placements),
}


def keys(partitions: int) -> list[str]:
    """Return a key for each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(partition_of(f"key{number}", partitions), f"key{number}")
        number += 1
    return list(found.values())


async def measure(url: str, name: str, partitions: int, facts: int, many: int) -> None:
    """Print how fast one decider is, and how fast the plain loop."""
    process, workload = WORK[name]
    url = f"{url}/{name}{partitions}x{many}"
    await create(url, KafkaSettings(), partitions=partitions, replication=1)
    with tempfile.TemporaryDirectory() as folder:
        ledger = await KafkaLedger.open(url, FolderStore(Path(folder)))
        total = await _append(ledger, workload, partitions, facts, many)
        count, seconds, processor_s = await _decide(ledger, process, facts)
        size = len((await ledger.read(process.decisions, 0, 0, 10))[-1].value)
        await ledger.close()
    plain = await _plain(url, process, total, count, size, partitions)
    rate = total / seconds
    print(
        f"{name:10} {partitions} partitions {many:6,} open: {rate:8,.0f} facts/s, "
        f"{count / seconds:8,.0f} decisions/s, {total / processor_s:8,.0f} facts per CPU second; "
        f"{rate / (total / plain):.2f} of a plain loop, {rate / AIM:.2f} of the aim",
        flush=True,
    )


async def _append(
    ledger: KafkaLedger, workload: Workload, partitions: int, facts: int, many: int
) -> int:
    total = 0
    for key in keys(partitions):
        drafts = []
        for number, data in enumerate(workload(key, facts // partitions, many)):
            event = fact(data, source="/rung/bench", origin="bench", sequence=number, time="t")
            drafts.append(Draft(event.topic, event.key, encode(event)))
        for start in range(0, len(drafts), 1_000):
            await ledger.append(drafts[start : start + 1_000])
        total += len(drafts)
    return total


async def _decide(
    ledger: KafkaLedger, process: Process[Any], facts: int
) -> tuple[int, float, float]:
    """Return how many decisions were made, in how many seconds, of the clock and of the CPU."""
    began, processor = time.perf_counter(), time.process_time()
    hosting = asyncio.create_task(host(ledger, process, snapshot_every=10**9))
    done, at = -1, began
    # The last fact causes decisions: when their number stands still, all are decided.
    while time.perf_counter() - at < 1.0:
        ends = [
            await ledger.end(process.decisions, number)
            for number in range(ledger.partitions(process.decisions))
        ]
        if sum(ends) != done:
            done, at, processor_s = sum(ends), time.perf_counter(), time.process_time() - processor
        await asyncio.sleep(0.05)
    assert done >= facts // 2, "not everything was decided"
    hosting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await hosting
    return done, at - began, processor_s


async def _plain(  # noqa: PLR0913, PLR0917 - what a measurement is of
    url: str, process: Process[Any], total: int, decisions: int, size: int, partitions: int
) -> float:
    """Return the seconds that reading the facts and sending as many messages takes."""
    address = parse_address(url)
    servers = [str(server) for server in address.servers]
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5)
    await consumer.start()
    await producer.start()
    places = [TopicPartition(address.topic(process.facts), n) for n in range(partitions)]
    consumer.assign(places)
    await consumer.seek_to_beginning()
    began = time.perf_counter()
    read = sent = 0
    waiting: Sequence[Any] = []
    while read < total:
        batches = await consumer.getmany(timeout_ms=1_000, max_records=2_000)
        read += sum(map(len, batches.values()))
        wanted = decisions * read // total
        topic = address.topic("deadletter")
        waiting = [
            await producer.send(topic, bytes(size), partition=n % partitions)
            for n in range(sent, wanted)
        ]
        sent = wanted
    await asyncio.gather(*waiting)
    seconds = time.perf_counter() - began
    await consumer.stop()
    await producer.stop()
    return seconds


async def main(facts: int) -> None:
    """Print all of it."""
    sys.path.insert(0, str(ROOT / "deploy" / "local"))
    from servers.kafka import KafkaBroker

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder))
        broker.start()
        try:
            for name in WORK:
                for partitions in PARTITIONS:
                    await measure(broker.url, name, partitions, facts, 100)
                for many in OPEN:
                    if many != 100:
                        await measure(broker.url, name, 4, facts, many)
        finally:
            broker.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--facts", type=int, default=20_000)
    asyncio.run(main(parser.parse_args().facts))
