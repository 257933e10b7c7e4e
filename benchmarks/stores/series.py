"""How fast reports become rows.

Records as agents write them are decoded and written into a ClickHouse server and into chDB, the
way the metrics service does it. Beside them, in turns and in the same run, the same rows go into
the same server by plain inserts of clickhouse-driver, by columns that are there already: the most
that this server takes from one Python process. The aim is 200,000 rows/s into the server,
decoding included, on two cores; from one partition, and from eight.

    python -m benchmarks.stores.series [--rows N] [--folder DIR]
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import figure

from rung.events import fact
from rung.events.metric import LogLine, LogsPrinted, MetricRow, MetricsReported
from rung.ledger import Draft, Record
from rung.ledger.memory import MemoryLedger
from rung.metrics import SeriesStore, Settings, migrate_series, serve
from rung.metrics.batch import Batch
from rung.metrics.clickhouse.address import PASSWORD
from rung.metrics.clickhouse.native import Column
from servers.clickhouse import USER, ClickHouse, installed

AIM = 200_000
ROUNDS = 3
VALUES = 2


def report(number: int, rows: int) -> MetricsReported:
    """Return what an agent says about one of 200 trials: `rows` steps of two metrics each."""
    experiment = f"exp{number % 8:05d}"
    first = number // 200 * rows
    return MetricsReported(
        experiment_id=experiment,
        trial_id=f"{experiment}.{number // 8 % 25}",
        run=1,
        rows=[
            MetricRow(
                kind="training",
                step=step,
                time_ms=1_760_000_000_000 + 37 * step,
                values={"loss": 1 / (1 + step) + number / 1e6, "accuracy": step / (7 + step)},
            )
            for step in range(first, first + rows)
        ],
    )


def printed(number: int, lines: int) -> LogsPrinted:
    """Return what a trial printed."""
    experiment = f"exp{number % 8:05d}"
    return LogsPrinted(
        experiment_id=experiment,
        trial_id=f"{experiment}.{number // 8 % 25}",
        run=1,
        lines=[
            LogLine(
                rank=0,
                stream="stdout",
                level="info",
                time_ms=1_760_000_000_000 + number,
                text=f"step {number * lines + line}: loss 0.{number:06d}, 1,204 samples/s",
            )
            for line in range(lines)
        ],
    )


def make_drafts(kind: str, rows: int, each: int) -> list[Draft]:
    """Return events with so many rows in all, each of so many reports or lines."""
    per_event = each * (VALUES if kind == "metrics" else 1)
    drafts = []
    for number in range(rows // per_event):
        data = report(number, each) if kind == "metrics" else printed(number, each)
        event = fact(
            data,
            source="/rung/agent/a1",
            origin="agent/a1/4f2c9d1e",
            sequence=number,
            time="2026-01-01T00:00:00.000Z",
        )
        drafts.append(Draft.of(event))
    return drafts


def blocks_of(records: list[Record]) -> list[tuple[str, list[Column]]]:
    """Return what the service would insert: per batch the table and its columns."""
    blocks = []
    batch = Batch()
    for record in records:
        batch.take(record)
        if batch.size >= Settings().flush_bytes or record is records[-1]:
            both = (("metrics", batch.metrics.block()), ("logs", batch.logs.block()))
            blocks += [(table, columns) for table, columns in both if columns]
            batch = Batch()
    return blocks


def plain(server: ClickHouse, database: str, blocks: list[tuple[str, list[Column]]]) -> float:
    """Return the rows per second of plain inserts by columns, of the same blocks."""
    from clickhouse_driver import Client

    client = Client(
        "127.0.0.1", port=server.port, user=USER, password=server.password, database=database
    )
    started = time.perf_counter()
    for table, columns in blocks:
        names = ", ".join(column.name for column in columns)
        client.execute(
            f"INSERT INTO {table} ({names}) VALUES",
            [column.values for column in columns],
            settings={"strings_as_bytes": True},
            columnar=True,
        )
    spent = time.perf_counter() - started
    client.disconnect()
    return sum(len(columns[0].values) for _, columns in blocks) / spent


async def kept(place: str, ledger: MemoryLedger, end: int, rows: int) -> float:
    """Return the rows per second of the service, from the ledger's records to stored rows."""
    store = SeriesStore(place, ledger_id=ledger.id)
    await store.open()
    started = time.perf_counter()
    # The last batch, which is not full, would wait for a second.
    serving = asyncio.create_task(serve(ledger, store, Settings(flush_seconds=0.1)))
    while sum((await store.positions()).values()) < end:  # noqa: ASYNC110 - in a thread
        await asyncio.sleep(0.02)
    spent = time.perf_counter() - started
    serving.cancel()
    await asyncio.wait([serving])
    await store.close()
    return rows / spent


def decoding(records: list[Record], rows: int) -> float:
    """Return the rows per second of decoding alone."""
    started = time.perf_counter()
    blocks_of(records)
    return rows / (time.perf_counter() - started)


async def measure(  # noqa: PLR0913, PLR0917 - what a measurement is of
    server: ClickHouse, folder: Path, kind: str, rows: int, each: int, partitions: int = 1
) -> float:
    """Print the speeds for one kind of record; return those of the server."""
    ledger = MemoryLedger(partitions=partitions, ledger_id="benchmark")
    drafts = make_drafts(kind, rows, each)
    await ledger.append(drafts)
    records = []
    for partition in range(partitions):
        records += await ledger.read(kind, partition, 0, len(drafts))
    blocks = blocks_of(records)
    rows = sum(len(columns[0].values) for _, columns in blocks)
    size = sum(len(record.value) for record in records) / rows
    measured: dict[str, list[float]] = {"plain": [], "server": [], "chdb": [], "decoding": []}
    for number in range(ROUNDS):
        for database in ("plain", "server"):
            server.drop(database)
            server.create(database)
        await migrate_series(server.database_url("plain"), days={}, now_ms=0, dry_run=False)
        measured["plain"].append(plain(server, "plain", blocks))
        measured["server"].append(
            await kept(server.database_url("server"), ledger, len(records), rows)
        )
        place = str(folder / f"{kind}-{each}-{partitions}-{number}")
        measured["chdb"].append(await kept(place, ledger, len(records), rows))
        measured["decoding"].append(decoding(records, rows))
    found = {name: statistics.median(values) for name, values in measured.items()}
    spread = "1 partition" if partitions == 1 else f"{partitions} partitions"
    print(
        f"{rows:,} rows of {kind}, {each} per event, {size:.0f} bytes of ledger each, in {spread}"
    )
    for name, place in (("server", "a ClickHouse server"), ("chdb", "chDB")):
        figure(
            f"rows of {kind} into {place}, {each} per event, {spread}",
            found[name],
            "rows/s",
            beside=f"{found[name] / found['plain']:.2f} of plain inserts by columns",
        )
    print(f"decoding alone {found['decoding']:,.0f} rows/s\n")
    return found["server"]


async def main(rows: int, folder: Path) -> int:
    """Measure it all; say by the exit code whether the aim is met."""
    server = ClickHouse(folder / "clickhouse")
    server.start()
    os.environ[PASSWORD] = server.password
    print(f"ClickHouse {server.query('SELECT version()')}, {os.cpu_count()} cores\n")
    try:
        speeds = [
            await measure(server, folder, "metrics", rows, 50),
            await measure(server, folder, "metrics", rows, 50, partitions=8),
            await measure(server, folder, "metrics", rows // 4, 1),
            await measure(server, folder, "logs", rows // 2, 20),
        ]
    finally:
        server.stop()
    print(f"aim: {AIM:,} rows/s into the server, decoding included: {speeds[0]:,.0f}")
    return int(speeds[0] < AIM)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, help="where to write for a while")
    arguments = parser.parse_args()
    if not installed():
        sys.exit("needs a ClickHouse server; on Debian: apt-get install clickhouse-server")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        sys.exit(asyncio.run(main(arguments.rows, Path(made))))
