"""What seals cost.

Appends are measured in turns with and without a sealer beside them, in one run on one disk: some
writers at full speed, then a steady rate, for the latency of each append. Then a ledger of N
events is sealed and verified. The aims: less than 5% of throughput, less than 1 ms of latency, and
less than 10 s for a million records on one core.

    python -m benchmarks.record.seals [--events N] [--folder DIR]
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.figures import figure

from rung.events import fact
from rung.events.metric import MetricRow, MetricsReported
from rung.ledger import Draft, SqliteLedger
from rung.ledger.seals import SealKey
from rung.ledger.seals.verify import Known, verify
from rung.runtime.sealing.sealer import Sealer, SealSettings, sealing

ROUNDS = 5
SECONDS = 4.0
WRITERS = 16
BATCH = 250
RATE = 2_000
"""Appends a second of which each one's latency is measured."""


def make_drafts(count: int) -> list[Draft]:
    """Return reports as agents write them, of forty experiments with some trials each."""
    drafts = []
    for number in range(count):
        trial = f"exp{number % 40:05d}.{number % 97}"
        rows = [
            MetricRow(
                kind="training", step=number, time_ms=number, values={"loss": 1 / (1 + number)}
            )
        ]
        payload = MetricsReported(
            experiment_id=trial.partition(".")[0], trial_id=trial, run=1, rows=rows
        )
        event = fact(
            payload,
            source="/rung/agent/a1",
            origin="agent/a1/4f2c9d1e",
            sequence=number,
            time="2025-01-01T00:00:00.000Z",
        )
        drafts.append(Draft.of(event))
    return drafts


async def fill(ledger: SqliteLedger, drafts: list[Draft], events: int) -> None:
    """Append events, ten thousand at a time."""
    for first in range(0, events, 10_000):
        at = first % len(drafts)
        await ledger.append(drafts[at : at + min(10_000, events - first)])


@contextlib.asynccontextmanager
async def sealed(ledger: SqliteLedger, key: SealKey, *, seals: bool) -> AsyncIterator[None]:
    """Have a sealer run beside the body, or not."""
    if not seals:
        yield
        return
    async with sealing(Sealer(ledger, key, settings=SealSettings())):
        yield


async def throughput(ledger: SqliteLedger, drafts: list[Draft]) -> float:
    """Return appends per second of several writers of batches."""
    count = 0
    started = time.perf_counter()

    async def write(number: int) -> None:
        nonlocal count
        at = number * BATCH
        while time.perf_counter() - started < SECONDS:
            at = (at + BATCH) % (len(drafts) - BATCH)
            await ledger.append(drafts[at : at + BATCH])
            count += BATCH

    await asyncio.gather(*(write(number) for number in range(WRITERS)))
    return count / (time.perf_counter() - started)


async def latencies(ledger: SqliteLedger, drafts: list[Draft]) -> list[float]:
    """Return how long each append took, in seconds, at a steady rate."""
    taken: list[float] = []

    async def one(draft: Draft) -> None:
        began = time.perf_counter()
        await ledger.append([draft])
        taken.append(time.perf_counter() - began)

    started = time.perf_counter()
    running: set[asyncio.Task[None]] = set()
    number = 0
    while (spent := time.perf_counter() - started) < SECONDS:
        while number < spent * RATE:
            task = asyncio.create_task(one(drafts[number % len(drafts)]))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*running)
    return taken


async def measure_appends(folder: Path, drafts: list[Draft]) -> None:
    """Print what a sealer costs those who append."""
    key = SealKey.generate()
    rates: dict[bool, list[float]] = {False: [], True: []}
    waits: dict[bool, list[float]] = {False: [], True: []}
    for number in range(ROUNDS):
        for seals in (False, True) if number % 2 else (True, False):
            ledger = await SqliteLedger.open(folder / f"appends-{number}-{seals}")
            async with sealed(ledger, key, seals=seals):
                rates[seals].append(await throughput(ledger, drafts))
            await ledger.close()
            ledger = await SqliteLedger.open(folder / f"waits-{number}-{seals}")
            async with sealed(ledger, key, seals=seals):
                waits[seals] += await latencies(ledger, drafts)
            await ledger.close()
    without, with_ = (statistics.median(rates[seals]) for seals in (False, True))
    figure(
        "durable appends beside the sealer",
        with_,
        "events/s",
        beside=f"{with_ / without:.3f} of those without it; wanted: 0.95",
    )
    for name, percent in (("median", 50), ("99%", 99)):
        plain, beside = (
            statistics.quantiles(waits[seals], n=100)[percent - 1] * 1000
            for seals in (False, True)
        )
        figure(
            f"a durable append beside the sealer, {name}",
            beside,
            "ms",
            beside=f"{beside - plain:+.2f} to that without it; wanted: under 1",
        )


async def measure_verifying(folder: Path, drafts: list[Draft], events: int) -> None:
    """Print how long it takes to seal and to verify a ledger."""
    key = SealKey.generate()
    ledger = await SqliteLedger.open(folder / "verified")
    await fill(ledger, drafts, events)
    started = time.perf_counter()
    sealer = Sealer(ledger, key)
    await sealer.start()
    await sealer.finish()
    made = time.perf_counter() - started
    started, cpu = time.perf_counter(), time.process_time()
    report = await verify(ledger, Known(keys=key.trusted))
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert report.whole, report.problems
    assert report.records == events, report.records
    await ledger.close()
    million = 1e6 / events
    print(f"\n{events:,} records, {report.seals:,} seals")
    print(f"{'seal what was there before':<34}{made * million:>10.2f} s per million")
    figure(
        "verify the seals of 1,000,000 records",
        took * million,
        "s",
        beside=f"{cpu * million:.2f} s of CPU; measured over {events:,}; wanted: under 10",
    )


async def main(events: int, folder: Path) -> None:
    """Measure it all."""
    drafts = make_drafts(20_000)
    await measure_appends(folder, drafts)
    await measure_verifying(folder, drafts, events)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="of the ledger to verify")
    parser.add_argument("--folder", type=Path, help="where to write for a while")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        asyncio.run(main(arguments.events, Path(made)))
