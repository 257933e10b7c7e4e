"""Events a second through the searcher and the scheduler on Apache Kafka, one process each.

A decider first fills its queue: so many trials are open, or allocations wait, in all partitions
together. Then as many facts lie in the ledger as asked for, each second of which ends one and
opens the next; the decider starts again, reads, folds and decides them, and appends its decisions.
The clock runs from when it has its queue. How that grows from 1 to 8 partitions, and from 10 to
10,000 open. The peer is a plain aiokafka loop on the same broker that reads the same facts in
batches and sends as many messages as there are decisions, of their size, and looks at neither.

    python -m benchmarks.record.deciding [--facts 20000]
"""

import argparse
import asyncio
import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from benchmarks.figures import figure
from benchmarks.record.evolve import config

from rung.events import Event, Payload, fact, partition_of
from rung.events.allocation import AgentJoined, AllocationReleased, Slot
from rung.events.experiment import ExperimentSubmitted
from rung.events.trial import RunRequested, RunSpec, TrialExited, TrialValidated
from rung.ledger import Draft, Record
from rung.ledger.kafka import KafkaLedger, KafkaSettings, create, parse_address
from rung.runtime import Processor, host
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.fold import PartitionFold
from rung.scheduler.processor import Scheduler
from rung.searcher.processor import Searcher
from rung.storage import FolderStore

AIM = 10_000
PARTITIONS = (1, 2, 4, 8)
OPEN = (10, 100, 1_000, 10_000)
SLOTS = 8

Workload = Callable[[str, int, int], tuple[list[Payload], list[Payload]]]
"""Of a key, a number of facts and how many shall be open: what opens them, and the facts."""


class Clock(Observer[Any]):
    """Looks on, and measures from when a decider has its queue to when it decided all facts."""

    def __init__(self, facts: int) -> None:
        self.done = asyncio.Event()
        self.facts = 0
        self.decisions = 0
        self.seconds = 0.0
        self.processor_s = 0.0
        self._due = facts
        self._began: tuple[float, float] | None = None

    def begin(self, partition: int, fold: PartitionFold[Any]) -> None:  # noqa: ARG002 - any
        """Begin with the first partition that is folded; leave out what was decided before."""
        self._began = self._began or (time.perf_counter(), time.process_time())
        self._due -= fold.facts

    def see(self, records: Sequence[Record], decisions: Sequence[Event]) -> None:
        """Count, and end with the last fact."""
        assert self._began is not None
        self.facts += len(records)
        self.decisions += len(decisions)
        if self.facts == self._due:
            self.seconds = time.perf_counter() - self._began[0]
            self.processor_s = time.process_time() - self._began[1]
            self.done.set()


def searches(key: str, facts: int, open_trials: int) -> tuple[list[Payload], list[Payload]]:
    """Return an experiment, and how its trials validate and end, one after another."""
    limits = {"max_concurrent_trials": open_trials, "max_time": 1}
    settings = config(open_trials + facts)
    settings["searcher"] |= limits
    opening = ExperimentSubmitted(experiment_id=key, config=settings, source="", code_digest=None)
    ends: list[Payload] = []
    for index in range(facts // 2):
        trial: dict[str, Any] = {"experiment_id": key, "trial_id": f"{key}.{index}", "run": 1}
        ends += [
            TrialValidated(**trial, steps_completed=1, metrics={"loss": 1.0 / (1 + index)}),
            TrialExited(
                **trial, agent_id="a", outcome="finished", exit_code=0, signal=None, message=""
            ),
        ]
    return [opening], ends


def placements(key: str, facts: int, waiting: int) -> tuple[list[Payload], list[Payload]]:
    """Return a full pool, and how one allocation after another is released and asked for."""
    slots = [Slot(id=number, kind="cpu", name="CPU") for number in range(SLOTS)]
    joined = AgentJoined(pool=key, agent_id="a", incarnation=1, hostname="a", slots=slots)
    many = waiting + SLOTS
    moves: list[Payload] = []
    for index in range(facts // 2):
        released = AllocationReleased(
            pool=key, allocation_id=f"bench.{index}.1", agent_id="a", incarnation=1
        )
        moves += [released, _requested(key, many + index)]
    return [joined, *(_requested(key, index) for index in range(many))], moves


def _requested(pool: str, index: int) -> RunRequested:
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
    return RunRequested(
        pool=pool,
        experiment_id="bench",
        reason="",
        slots=1,
        priority=42,
        max_slots=None,
        spec=spec,
    )


WORK: dict[str, tuple[Processor[Any], Workload]] = {
    "searcher": (Searcher(), searches),
    "scheduler": (Scheduler(), placements),
}
OPENED: dict[str, Callable[[int, int], int]] = {
    "searcher": lambda partitions, many: partitions + 2 * many,
    "scheduler": lambda partitions, _: partitions * SLOTS,
}
"""How many decisions fill the queue: plans, trials and runs; grants of all slots."""


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
        opening, work = _drafts(workload, partitions, facts, many)
        await _append(ledger, opening)
        opened = await _decide(ledger, process)
        assert opened.decisions == OPENED[name](partitions, many), "not so many are open"
        starts = [await ledger.end(process.facts, number) for number in range(partitions)]
        await _append(ledger, work)
        clock = await _decide(ledger, process)
        assert clock.decisions >= len(work) // 2, "not everything was decided"
        size = len((await ledger.read(process.decisions, 0, 0, 10))[-1].value)
        await ledger.close()
    plain = len(work) / await _plain(url, process, starts, len(work), clock.decisions, size)
    rate = clock.facts / clock.seconds
    figure(
        f"{name} on Kafka, {partitions} partition{'s' * (partitions > 1)}, {many:,} open",
        rate,
        "facts/s",
        beside=f"{rate / plain:.2f} of a loop that only reads and sends; "
        f"{clock.decisions / clock.seconds:,.0f} decisions/s, "
        f"{clock.facts / clock.processor_s:,.0f} facts per CPU second; wanted: {AIM:,}",
    )


def _drafts(
    workload: Workload, partitions: int, facts: int, many: int
) -> tuple[list[Draft], list[Draft]]:
    """Return what opens so many, and the facts, shared out evenly over the partitions."""
    opening: list[Draft] = []
    work: list[Draft] = []
    for place, key in enumerate(keys(partitions)):
        share = many // partitions + (place < many % partitions)
        first, then = workload(key, facts // partitions, share)
        for number, data in enumerate(first + then):
            event = fact(data, source="/rung/bench", origin="bench", sequence=number, time="t")
            draft = Draft.of(event)
            (opening if number < len(first) else work).append(draft)
    return opening, work


async def _append(ledger: KafkaLedger, drafts: list[Draft]) -> None:
    for start in range(0, len(drafts), 1_000):
        await ledger.append(drafts[start : start + 1_000])


async def _decide(ledger: KafkaLedger, process: Processor[Any]) -> Clock:
    """Decide all facts there are, and return what was measured."""
    topic = process.facts
    clock = Clock(sum([await ledger.end(topic, n) for n in range(ledger.partitions(topic))]))
    hosting = asyncio.create_task(host(ledger, process, observer=clock))
    async with asyncio.timeout(300):
        await clock.done.wait()
    hosting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await hosting
    return clock


async def _plain(  # noqa: PLR0913, PLR0917 - what a measurement is of
    url: str, process: Processor[Any], starts: list[int], total: int, decisions: int, size: int
) -> float:
    """Return the seconds that reading the facts and sending as many messages takes."""
    address = parse_address(url)
    servers = [str(server) for server in address.servers]
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=5)
    await consumer.start()
    await producer.start()
    places = [TopicPartition(address.topic(process.facts), n) for n in range(len(starts))]
    consumer.assign(places)
    for place, start in zip(places, starts, strict=True):
        consumer.seek(place, start)
    began = time.perf_counter()
    read = sent = 0
    waiting: Sequence[Any] = []
    while read < total:
        batches = await consumer.getmany(timeout_ms=1_000, max_records=2_000)
        read += sum(map(len, batches.values()))
        wanted = decisions * read // total
        topic = address.topic("deadletter")
        waiting = [
            await producer.send(topic, bytes(size), partition=n % len(starts))
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
