"""What an idle installation costs, and a call of the command line.

    python -m benchmarks.search.idle [--seconds N] [--calls N]

`rung up` with its agent is started in an empty folder and left alone. Memory is what the processes
hold in proportion (PSS), so pages that they share count once. Calls are of `rung list` and `rung
whoami`, processor time of the whole process; the peer is a Python that does the same request
with the standard library alone, and imports nothing else.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil
from benchmarks.figures import figure

from rung.cli.local.data_folder import read_server
from rung.cli.local.up import UpOptions, start_detached

AIM_MB: Final = 250
AIM_CALL_MS: Final = 160
PLAIN: Final = """
import http.client, json, sys
connection = http.client.HTTPConnection(sys.argv[1].removeprefix("http://"))
headers = {"Authorization": "Bearer " + sys.argv[2]}
connection.request("GET", "/api/v1/experiments", headers=headers)
json.load(connection.getresponse())
"""


def belongs(process: psutil.Process, folder: str) -> bool:
    """Return whether a process is one of the installation in a folder."""
    try:
        return folder in " ".join([*process.cmdline(), *process.environ().values()])
    except psutil.Error:
        return False


def megabytes(process: psutil.Process) -> float:
    """Return what a process holds, in proportion where it shares."""
    return float(process.memory_full_info().pss) / 1e6


def cpu_ms(command: list[str], environment: dict[str, str], calls: int) -> float:
    """Return the median processor time of a command."""
    spent = []
    for _ in range(calls):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1000 * statistics.median(spent)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--calls", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "data"
        environment = os.environ | {"RUNG_DATA": str(folder)}
        begun = time.monotonic()
        start_detached(folder, UpOptions(port=0, slots=1))
        started_s = time.monotonic() - begun
        try:
            time.sleep(asked.seconds)
            idle(str(folder), asked.seconds, started_s)
            calls(folder, environment, asked.calls)
        finally:
            rung = [sys.executable, "-m", "rung.cli"]
            subprocess.run([*rung, "down", "--kill"], check=True, env=environment)


def idle(folder: str, seconds: float, started_s: float) -> None:
    """Print the memory of what runs."""
    held = {
        " ".join(it.cmdline()[1:5])[:60]: megabytes(it)
        for it in psutil.process_iter()
        if belongs(it, folder)
    }
    for name, size in held.items():
        print(f"{size:8.0f} MB {name}")
    figure(
        f"idle `rung up` and agent, {seconds:.0f} s after the start",
        sum(held.values()),
        "MB",
        at_most=AIM_MB,
        beside=f"{len(held)} processes; started within {started_s:.1f} s",
    )


def calls(folder: Path, environment: dict[str, str], count: int) -> None:
    """Print what calls of the command line take, beside the same request alone."""
    server = read_server(folder)
    peer = [sys.executable, "-S", "-c", PLAIN, server.url, server.token]
    plain_ms = cpu_ms(peer, environment, count)
    for command in ("list", "whoami"):
        spent_ms = cpu_ms([sys.executable, "-m", "rung.cli", command], environment, count)
        figure(
            f"a call of `rung {command}`",
            spent_ms,
            "ms of CPU",
            at_most=AIM_CALL_MS,
            beside=f"{spent_ms / plain_ms:.1f} times the request of a plain Python",
        )


if __name__ == "__main__":
    main()
