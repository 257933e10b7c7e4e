"""How fast the ledger is.

Everything is measured in one run, beside a plain sqlite3 loop that commits each insert to a file
on the same disk with the same settings (write-ahead log, FULL sync), because disks differ more
than programs do. What is durable there is durable here.

    python -m benchmarks.record.ledger [--events N] [--folder DIR]
"""

import argparse
import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import figure

from rung.events import decode, fact, partition_of
from rung.events.trial import TrialValidated
from rung.ledger import Draft, SqliteLedger

SECONDS = 3.0
ROUNDS = 3


def make_drafts(count: int) -> list[Draft]:
    """Return events as agents write them, of many experiments."""
    drafts = []
    for number in range(count):
        experiment = f"exp{number % 40:05d}"
        payload = TrialValidated(
            experiment_id=experiment,
            trial_id=f"{experiment}.{number % 97}",
            run=1,
            steps_completed=number,
            metrics={"validation_loss": 0.4321 + number / 1e6, "accuracy": 0.9},
        )
        event = fact(
            payload,
            source="/rung/agent/a1",
            origin="agent/a1/4f2c9d1e",
            sequence=number,
            time="2025-01-01T00:00:00.000000Z",
        )
        drafts.append(Draft.of(event))
    return drafts


def plain_loop(path: Path, drafts: list[Draft]) -> float:
    """Return the inserts per second of a loop that commits each."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS r (id INTEGER PRIMARY KEY, key, value)")
    count = 0
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < SECONDS / ROUNDS:
        _, key, value = drafts[count % len(drafts)]
        database.execute("INSERT INTO r (key, value) VALUES (?, ?)", (key, value))
        count += 1
    database.close()
    return count / spent


async def appends(ledger: SqliteLedger, drafts: list[Draft], writers: int, batch: int) -> float:
    """Return the appends per second of several writers, each awaiting its own."""
    count = 0
    started = time.perf_counter()

    async def write(number: int) -> None:
        nonlocal count
        at = number * batch
        while time.perf_counter() - started < SECONDS / ROUNDS:
            at = (at + batch) % (len(drafts) - batch)
            await ledger.append(drafts[at : at + batch])
            count += batch

    await asyncio.gather(*(write(number) for number in range(writers)))
    return count / (time.perf_counter() - started)


async def measure_appends(folder: Path, drafts: list[Draft]) -> None:
    """Print appends per second, each kind in turns with the plain loop."""
    ledger = await SqliteLedger.open(folder / "appends")
    kinds = [(1, 1), (16, 1), (128, 1), (1, 1000)]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind, measured in found.items():
            plain = plain_loop(folder / "plain.db", drafts)
            measured.append((await appends(ledger, drafts, *kind), plain))
    await ledger.close()
    for (writers, batch), measured in found.items():
        ours, plain = sorted(measured, key=lambda pair: pair[0] / pair[1])[len(measured) // 2]
        many = "" if batch == 1 else f" in batches of {batch}"
        name = f"{writers} writer{'s' * (writers > 1)}{many}"
        figure(
            f"durable appends on SQLite, {name}",
            ours,
            "events/s",
            beside=f"{ours / plain:.2f} of a plain loop that commits each",
        )


async def fill(ledger: SqliteLedger, drafts: list[Draft], events: int) -> float:
    """Append events by the thousand, a few batches at a time; return events per second."""
    started = time.perf_counter()
    batches = len(drafts) // 1000
    for first in range(0, events // 1000, 4):
        at = [index % batches * 1000 for index in range(first, min(first + 4, events // 1000))]
        await asyncio.gather(*(ledger.append(drafts[start : start + 1000]) for start in at))
    return events / (time.perf_counter() - started)


async def read_all(ledger: SqliteLedger, each: Callable[[bytes], object] | None) -> float:
    """Read all partitions; return records per second."""
    count = 0
    started = time.perf_counter()
    for partition in range(ledger.partitions("experiments")):
        position = 0
        while records := await ledger.read("experiments", partition, position, 5000):
            count += len(records)
            position = records[-1].position + 1
            if each is not None:
                for record in records:
                    each(record.value)
    return count / (time.perf_counter() - started)


async def measure_reads(folder: Path, drafts: list[Draft], events: int) -> None:
    """Print how fast a large ledger is filled, opened and read."""
    ledger = await SqliteLedger.open(folder / "reads")
    filled = await fill(ledger, drafts, events)
    await ledger.close()
    size = (folder / "reads" / "ledger.db").stat().st_size
    started = time.perf_counter()
    ledger = await SqliteLedger.open(folder / "reads")
    opened = time.perf_counter() - started
    read = await read_all(ledger, None)
    decoded = await read_all(ledger, decode)
    await ledger.close()
    print(f"\n{events:,} events, {size / 1e6:,.0f} MB")
    print(f"{'fill in batches of 1000':<34}{filled:>10,.0f} events/s")
    print(f"{'open, checked':<34}{opened * 1000:>10,.0f} ms")
    print(f"{'read':<34}{read:>10,.0f} events/s{1e6 / read:>12.2f} s per million")
    print(f"{'read and decode':<34}{decoded:>10,.0f} events/s{1e6 / decoded:>12.2f} s per million")


async def measure_waking(folder: Path, drafts: list[Draft]) -> None:
    """Print how long an append takes to reach a follower, here and through another opening."""
    one = await SqliteLedger.open(folder / "waking")
    two = await SqliteLedger.open(folder / "waking")
    draft = drafts[0]._replace(key="k")
    (position,) = await one.append([draft])
    partition = partition_of("k", one.partitions(draft.topic))
    following = one.follow(draft.topic, partition, position + 1)
    print()
    for name, writer in (("same process", one), ("another opening", two)):
        waits = []
        for _ in range(300):
            waiting = asyncio.ensure_future(anext(following))
            await asyncio.sleep(0)
            started = time.perf_counter()
            await asyncio.gather(writer.append([draft]), waiting)
            waits.append(time.perf_counter() - started)
        median = sorted(waits)[len(waits) // 2]
        print(f"{'append until followed, ' + name:<40}{median * 1e6:>6,.0f} us")
    await one.close()
    await two.close()


async def main(events: int, folder: Path) -> None:
    """Measure it all."""
    drafts = make_drafts(20_000)
    print(f"SQLite {sqlite3.sqlite_version}, events of about {len(drafts[7].value)} bytes\n")
    await measure_appends(folder, drafts)
    await measure_waking(folder, drafts)
    await measure_reads(folder, drafts, events)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="of the large ledger")
    parser.add_argument("--folder", type=Path, help="where to write for a while")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        asyncio.run(main(arguments.events, Path(made)))
