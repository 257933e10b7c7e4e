"""Ledgers to archive: a simulated search, and streams of any length."""

import asyncio
import io
from collections.abc import Iterator
from functools import partial
from typing import Final

from rung.events import encode, fact, topic
from rung.events.metric import MetricRow, MetricsReported
from rung.ledger import Draft, Ledger, MemoryLedger, Record
from rung.ledger.archive.index import TOPICS
from rung.ledger.export.export import export
from rung.sim.clock import in_virtual_time
from rung.sim.company import Company
from rung.sim.scenario import EXPERIMENT, simulate
from rung.sim.workload import calm
from rung.sim.world import Faults, World
from support.ledger.events import TIME

_ASKED: Final = 9
"""Requests to the directory."""


async def simulated() -> MemoryLedger:
    """Return the ledger of a search that the real services made in a simulated world.

    Meanwhile the directory was asked for changes.
    """

    async def searched() -> World:
        world = World(1, Faults())
        company = Company(1)
        for moment in range(1, _ASKED + 1):
            world.after(moment, partial(world.write, company.next(), "gateway/company"))
        await simulate(world, calm("asha"))
        return world

    world = await asyncio.to_thread(in_virtual_time, searched())
    ledger = MemoryLedger(partitions=1)
    for name in TOPICS:
        records = await world.records(name)
        await ledger.append([Draft(name, record.key, record.value) for record in records])
    await ledger.append([Draft(topic.METRICS, f"{EXPERIMENT}.0", _report(at)) for at in range(99)])
    return ledger


def _report(step: int) -> bytes:
    """Return an event as agents write it."""
    row = MetricRow(kind="training", step=step, time_ms=step, values={"loss": 1 / (step + 1)})
    trial = f"{EXPERIMENT}.0"
    data = MetricsReported(experiment_id=EXPERIMENT, trial_id=trial, run=1, rows=[row])
    return encode(fact(data, source="/rung/agent/a", origin="a", sequence=step, time=TIME))


async def contents(ledger: Ledger) -> dict[tuple[str, int], list[Record]]:
    """Return all records that an archive holds, by partition."""
    found: dict[tuple[str, int], list[Record]] = {}
    for name in TOPICS:
        for partition in range(ledger.partitions(name)):
            records: list[Record] = []
            position = await ledger.start(name, partition)
            while batch := await ledger.read(name, partition, position, 7):
                records += batch
                position = batch[-1].position + 1
            found[name, partition] = records
    return found


async def exported(ledger: Ledger) -> bytes:
    """Return an export."""
    out = io.BytesIO()
    await export(ledger, out)
    return out.getvalue()


def lines_of_metrics(count: int, *, partition: int = 0) -> Iterator[Record]:
    """Yield records as they lie on `metrics`, without events in them."""
    for position in range(count):
        value = b'{"step": %d, "padding": "%s"}' % (position, b"x" * 300)
        yield Record(topic.METRICS, partition, position, "k", value)
