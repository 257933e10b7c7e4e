"""What listeners of server-sent events cost a search, and what a trial costs its ledger.

Trials only report a synthetic curve. Each search runs without listeners and with them, in turns,
on one `rung up`; the listeners are connections of another process that drop what they get. They
listen to the running search's events and metrics, or to those of another search. Beside the ratio
of trials a second there are the SQLite reads and transactions of a trial, of services and agent.

    python -m benchmarks.gateway.listeners [--trials 200] [--listeners 200] [--rounds 2]
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.figures import figure

CODE = Path(__file__).parents[1] / "submitted" / "synthetic"
SLOTS = 4
STREAMS = ("events?from=now", "metrics/stream?from=now")


class Search(NamedTuple):
    """What was measured of one search."""

    rate: float
    """Trials a second."""
    queries: float
    """SQLite queries of the ledger a trial, of services and agent."""
    transactions: float
    """Ledger transactions a trial, of services and agent."""
    agent: float
    """Those of the agent."""
    cpu_ms: float
    """What a trial takes of a processor in the services."""


def experiment(trials: int) -> dict[str, Any]:
    """Return an experiment whose trials report five values each."""
    return {
        "name": f"listened-{trials}",
        "entrypoint": "python3 train.py",
        "hyperparameters": {"limit": {"type": "double", "minval": 0, "maxval": 1}},
        "searcher": {
            "name": "random",
            "metric": "loss",
            "max_length": {"batches": 81},
            "max_trials": trials,
            "max_concurrent_trials": SLOTS,
        },
        "reproducibility": {"experiment_seed": 1},
    }


class Machine:
    """One running `rung up`, whose ledger's reads and transactions are counted."""

    def __init__(self, folder: Path) -> None:
        self._counts = folder / "counts"
        self._counts.mkdir()
        counted = str(Path(__file__).parents[1] / "counted")
        self._environment = {
            **os.environ,
            "RUNG_DATA": str(folder / "data"),
            "RUNG_COUNTS": str(self._counts),
            "PYTHONPATH": os.pathsep.join(filter(None, [counted, os.environ.get("PYTHONPATH")])),
        }
        self._folder = folder
        up = json.loads(
            self.rung("up", "--detach", "--port", "0", "--slots", str(SLOTS), "--json")
        )
        self.latest = ""
        self.url = up["url"]
        self._services: int = up["pid"]
        self._token = (folder / "data" / "token").read_text().strip()

    def rung(self, *arguments: str) -> str:
        """Run a command."""
        command = [sys.executable, "-m", "rung.cli", *arguments]
        output = subprocess.run(command, env=self._environment, check=True, stdout=subprocess.PIPE)
        return output.stdout.decode()

    def search(self, trials: int, listeners: int = 0, of: str | None = None) -> Search:
        """Run a search with listeners of its own streams, or of those of another one."""
        file = self._folder / "experiment.yaml"
        file.write_text(json.dumps(experiment(trials)))
        submitted = json.loads(self.rung("submit", str(file), str(CODE), "--json"))
        name: str = submitted["experiment_id"]
        if listeners or trials > SLOTS:
            self.rung("pause", name)
        with listening(self.url, self._token, of or name, listeners):
            before = self._counted()
            started = time.perf_counter()
            if listeners or trials > SLOTS:
                self.rung("resume", name)
            self.rung("wait", name)
            took = time.perf_counter() - started
            after = self._counted()
        self.latest = name
        each = [(now - then) / trials for now, then in zip(after, before, strict=True)]
        return Search(trials / took, *each)

    def _counted(self) -> tuple[float, ...]:
        found = {
            int(path.name): struct.unpack("2q", path.read_bytes())
            for path in self._counts.iterdir()
        }
        stat = Path(f"/proc/{self._services}/stat").read_text().rpartition(")")[2].split()
        cpu = int(stat[11]) + int(stat[12])
        return (
            sum(queries for queries, _ in found.values()),
            sum(transactions for _, transactions in found.values()),
            sum(found[pid][1] for pid in found if pid != self._services),
            1000 * cpu / os.sysconf("SC_CLK_TCK"),
        )


@contextlib.contextmanager
def listening(url: str, token: str, name: str, count: int) -> Iterator[None]:
    """Have connections of another process listen to an experiment while the context lasts."""
    if not count:
        yield
        return
    command = [
        sys.executable,
        "-m",
        "benchmarks.gateway.listeners",
        "--listen",
        url,
        token,
        name,
        str(count),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # all are connected
        try:
            yield
        finally:
            process.stdin.close()


class _Listener(asyncio.Protocol):
    """A connection that drops what it gets."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.answered = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._head)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            assert data.startswith(b"HTTP/1.1 200"), data
            self.answered.set_result(None)


async def listen(url: str, token: str, name: str, count: int) -> None:
    """Open connections, say so, and hold them until the input ends."""
    loop = asyncio.get_running_loop()
    server = urlsplit(url)
    for number in range(count):
        path = f"/api/v1/experiments/{name}/{STREAMS[number % len(STREAMS)]}"
        head = f"GET {path} HTTP/1.1\r\nHost: {server.netloc}\r\n"
        head += f"Authorization: Bearer {token}\r\n\r\n"
        make = partial(_Listener, head.encode())
        _, listener = await loop.create_connection(make, server.hostname or "", server.port or 0)
        await listener.answered
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Print the rates and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--listeners", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--listen", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.listen:
        url, token, name, count = options.listen
        asyncio.run(listen(url, token, name, int(count)))
        return
    found: dict[str, list[Search]] = {}
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder))
        try:
            machine.search(SLOTS)  # the fork server is warm, as on a machine in use
            other = machine.latest
            cases = {
                "no listeners": (0, None),
                f"{options.listeners} listeners of it": (options.listeners, None),
                f"{options.listeners} listeners of another": (options.listeners, other),
            }
            for _ in range(options.rounds):
                for case, (count, of) in cases.items():
                    measured = machine.search(options.trials, count, of)
                    found.setdefault(case, []).append(measured)
                    print(f"  {case}: {measured.rate:.1f} trials/s", flush=True)
        finally:
            machine.rung("down")
    alone = _median(found["no listeners"])
    for case, searches in found.items():
        it = _median(searches)
        figure(
            f"a trial in the services, {case}",
            it.cpu_ms,
            "ms of CPU",
            beside=f"{it.cpu_ms / alone.cpu_ms:.2f} of alone; {it.rate:.1f} trials/s, "
            f"{it.rate / alone.rate:.2f} of alone; {it.queries:.1f} queries, "
            f"{it.transactions:.1f} transactions, {it.agent:.1f} of them the agent's",
        )


def _median(searches: Sequence[Search]) -> Search:
    return Search(*map(statistics.median, zip(*searches, strict=True)))


if __name__ == "__main__":
    main()
