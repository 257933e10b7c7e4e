"""What the scheduler tells of its pools, while it really decides."""

import asyncio
from collections.abc import Callable

from rung.events import Payload, decode, encode, fact
from rung.events.deadletter import FactRejected
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime import FactWriter, PartitionFold
from rung.runtime.metrics import catalog
from rung.runtime.service import serve
from rung.scheduler import Scheduler
from rung.scheduler.metrics import PoolGauge
from rung.scheduler.service import components
from support.scheduler.scenario import joined, released, requested

_Told = dict[tuple[str, ...], float]


def _waits() -> float:
    told = catalog.METER.expose().decode().splitlines()
    name = 'rung_queue_wait_seconds_count{pool="default"} '
    return sum(float(line.removeprefix(name)) for line in told if line.startswith(name))


async def _until(read: Callable[[], _Told], wanted: _Told) -> None:
    async with asyncio.timeout(10):
        while read() != wanted:  # noqa: ASYNC110 - gauges are read, nobody tells of their changes
            await asyncio.sleep(0.01)


async def test_a_request_that_cannot_be_read_is_measured_no_more_than_decided() -> None:
    """It is rejected; the pools are decided, and measured, as before."""
    ledger = MemoryLedger(partitions=1)
    writer = FactWriter(ledger, source="/rung/agent/n", origin="agent/n/0")
    asked = fact(requested("cccccccc.0.1"), source="/x", origin="x", sequence=1, time="t")
    broken = encode(asked).replace(b'"spec":', b'"spek":')

    serving = asyncio.create_task(serve(ledger, components()))
    await writer.write(joined("n", slots=2))
    await ledger.append([Draft(asked.topic, "elsewhere", broken)])
    await writer.write(requested("aaaaaaaa.0.1"))

    def used() -> _Told:
        told = catalog.SLOTS.read()
        return {labels: told[labels] for labels in told if labels == ("default", "used")}

    await _until(used, {("default", "used"): 1.0})
    assert not serving.done()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)

    placed = [decode(it.value).data for it in await ledger.read("placements", 0, 0, 9)]
    assert [it.key for it in placed if isinstance(it, FactRejected)] == ["elsewhere"]


async def test_slots_and_queues_are_read_from_what_is_folded() -> None:
    """Free, used, waiting; a wait is observed when it ends; nothing is left when it stops."""
    ledger = MemoryLedger(partitions=2)
    writer = FactWriter(ledger, source="/rung/agent/n", origin="agent/n/0")

    async def write(*payloads: Payload) -> None:
        for payload in payloads:
            await writer.write(payload)

    before = _waits()
    serving = asyncio.create_task(serve(ledger, components()))
    await write(
        joined("n", slots=2), requested("aaaaaaaa.0.1"), requested("bbbbbbbb.0.1", slots=2)
    )
    await _until(catalog.SLOTS.read, {("default", "free"): 1.0, ("default", "used"): 1.0})
    await _until(catalog.QUEUE_LENGTH.read, {("default",): 1.0})
    assert _waits() == before + 1
    await write(released("aaaaaaaa.0.1", "n"))
    await _until(catalog.SLOTS.read, {("default", "free"): 0.0, ("default", "used"): 2.0})
    await _until(catalog.QUEUE_LENGTH.read, {("default",): 0.0})
    assert _waits() == before + 2
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)

    assert (catalog.SLOTS.read(), catalog.QUEUE_LENGTH.read()) == ({}, {})


def test_what_is_remembered_is_bounded() -> None:
    """A restart goes through history: requests that were granted long ago are met once more."""
    gauge = PoolGauge(clock=lambda: 0.0)
    gauge.begin(0, PartitionFold(Scheduler()))
    for number in range(5_000):
        event = fact(
            requested(f"{number:08}.0.1"), source="/x", origin="x", sequence=number, time="t"
        )
        gauge.see([Record(event.topic, 0, number, event.key, encode(event))], [])

    assert len(gauge._since) <= 1_001
