"""How fast logs are read.

Pages of 1,000 lines out of logs of 100,000 lines and of N (ten million), in one chDB folder: the
first and the last page, one in the middle, of one trial, of a level that one line in 100,000 has,
of one that one in 50 has, of a rare word, number and digest. The aims, for N: 50 ms, 300 ms for a
text, and at most three times as long as of 100,000.
Then `rung logs` of 300,000 lines, through a gateway in a process of its own, into a pipe, beside
`cat` of the same text. The aim is 100,000 lines/s on two cores.

    python -m benchmarks.stores.logs [--lines N] [--folder DIR]
"""

import argparse
import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import figure

from rung.api import LogSelection
from rung.events import fact
from rung.events.experiment import ExperimentSubmitted
from rung.gateway.context import Parts
from rung.gateway.service import serve
from rung.ledger import Draft, SqliteLedger
from rung.metrics import SeriesStore
from rung.metrics.clickhouse.embedded import Embedded
from rung.metrics.queries import LineKey, write_cursor
from rung.storage import FolderStore

SHORT = 100_000
PRINTED = 300_000
BLOCK = 1_000_000
PAGE = 1_000
ROUNDS = 5
AIM_MS = 50.0
AIM_TEXT_MS = 300.0
AIM_LINES_S = 100_000
TOKEN = "benchmark"  # noqa: S105 - of a server that lives for seconds

_FILL = """
INSERT INTO logs
    (experiment_id, time_ms, trial_id, sequence, line, origin, run, rank, stream, level, text)
SELECT '{name}', 1763000000000 + intDiv(n, 10),
    concat('{name}.', toString(intDiv(n, {per}) * 4 + n % 4)), intDiv(n, 1000), n % 1000,
    'agent/a/b', 1, 0, 'stdout',
    multiIf(n % 100003 = 7, 'error', n % 50 = 3, 'warning', 'info'),
    concat('step ', toString(n), ': loss ', toString(cityHash64(n) / 1e19), ', 1,204 samples/s',
        if(n % 99991 = 7, ' needle', ''), ' ', lower(hex(MD5(toString(n)))))
FROM (SELECT number + {first} AS n FROM numbers({count}))
"""


async def fill(engine: Embedded, name: str, lines: int) -> None:
    """Insert lines as blocks: eight trials print at a time, as many one after another."""
    for first in range(0, lines, BLOCK):
        count = min(BLOCK, lines - first)
        sql = _FILL.format(name=name, first=first, count=count, per=max(lines // 25, 4))
        await engine.run(lambda tables, sql=sql: tables.execute(sql))  # type: ignore[misc]


async def page_ms(store: SeriesStore, name: str, **asked: Any) -> float:
    """Return the least time of some pages."""
    selection = LogSelection(experiment_id=name, limit=PAGE)._replace(**asked)
    spent = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        found, _ = await store.logs(selection)
        spent.append(1e3 * (time.perf_counter() - started))
        assert found
    return min(spent)


def pages_of(name: str, lines: int) -> dict[str, dict[str, Any]]:
    """Return what is asked of a log of so many lines."""
    n = lines // 2
    middle = write_cursor(LineKey(1763000000000 + n // 10, f"{name}.1", n // 1000, 1, "agent/a/b"))
    return {
        "first": {},
        "last": {"order": "newest"},
        "middle": {"after": middle},
        "before the middle": {"after": middle, "order": "newest"},
        "trial": {"experiment_id": None, "trial_id": f"{name}.81"},
        "rare level": {"level": "error"},
        "rare level, newest": {"level": "error", "order": "newest"},
        "level": {"level": "warning"},
        "level from the middle": {"level": "warning", "after": middle},
        "text": {"text": "Needle"},
        "text: a number": {"text": f"{n}:"},
        "text: a digest": {
            "text": hashlib.md5(f"{n}".encode(), usedforsecurity=False).hexdigest()
        },
    }


async def pages(folder: Path, lines: int) -> bool:
    """Print what pages take; return whether the aims are met."""
    engine = Embedded(folder / "series")
    store = SeriesStore(engine, ledger_id="benchmark")
    await store.open()
    counts = {"short000": SHORT, "long0000": lines}
    for name, count in counts.items():
        await fill(engine, name, count)
    # The engine remembers which granules a condition chose: here each page is to be the first.
    await engine.run(lambda tables: tables.execute("SET use_query_condition_cache = 0"))
    good = True
    choices = {name: pages_of(name, count) for name, count in counts.items()}
    for what in choices["long0000"]:
        spent = {name: await page_ms(store, name, **choices[name][what]) for name in counts}
        short, long = spent.values()
        good &= figure(
            f"page of {PAGE:,} out of {lines:,} log lines: {what}",
            long,
            "ms",
            at_most=AIM_TEXT_MS if what.startswith("text") else AIM_MS,
            beside=f"{long / short:.1f} times that of {SHORT:,} lines",
        )
    await store.close()
    return good


async def gateway(folder: Path) -> None:
    """Serve one experiment with so many printed lines; the port goes to standard output."""
    import socket

    ledger = await SqliteLedger.open(folder / "ledger")
    name = "printed0"
    data = ExperimentSubmitted(experiment_id=name, config={}, source="", code_digest=None)
    event = fact(data, source="/b", origin="b", sequence=1, time="2026-01-01T00:00:00.000Z")
    await ledger.append([Draft.of(event)])
    engine = Embedded(folder / "printed")
    store = SeriesStore(engine, ledger_id=ledger.id)
    await store.open()
    await fill(engine, name, PRINTED)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await serve(
        ledger,
        FolderStore(folder / "objects"),
        listener=listener,
        token=TOKEN,
        parts=Parts(store),
        started=lambda: print(port, flush=True),
    )


def to_pipe(folder: Path, port: int, *options: str) -> float:
    """Return the lines per second of `rung logs` into a pipe, its start included."""
    command = [sys.executable, "-m", "rung.cli", "logs", "printed0", *options]
    environment = os.environ | {"RUNG_URL": f"http://127.0.0.1:{port}", "RUNG_TOKEN": TOKEN}
    printed = folder / "printed.txt"
    started = time.perf_counter()
    with printed.open("wb") as out:
        subprocess.run(command, check=True, stdout=out, env=environment)
    spent = time.perf_counter() - started
    assert printed.read_bytes().count(b"\n") == PRINTED
    return PRINTED / spent


def cat(folder: Path) -> float:
    """Return the lines per second of `cat` on the same text."""
    started = time.perf_counter()
    with (folder / "copied.txt").open("wb") as out:
        subprocess.run(["cat", str(folder / "printed.txt")], check=True, stdout=out)
    return PRINTED / (time.perf_counter() - started)


def command(folder: Path) -> bool:
    """Print what `rung logs` takes; return whether the aim is met."""
    arguments = [sys.executable, "-m", "benchmarks.stores.logs", "--serve", str(folder)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        port = int(next(line for line in serving.stdout if line.strip().isdigit()))
        try:
            text = max(to_pipe(folder, port) for _ in range(3))
            lines = max(to_pipe(folder, port, "--json") for _ in range(3))
            peer = cat(folder)
        finally:
            serving.terminate()
    for name, rate in (("rung logs", text), ("rung logs --json", lines)):
        beside = f"1/{peer / rate:.0f} of cat; wanted: {AIM_LINES_S:,}"
        figure(f"`{name}` into a pipe", rate, "lines/s", beside=beside)
    return min(text, lines) >= AIM_LINES_S


def main() -> None:
    """Measure and print; leave with 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(gateway(options.serve))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        good = asyncio.run(pages(Path(made), options.lines))
        good &= command(Path(made))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
