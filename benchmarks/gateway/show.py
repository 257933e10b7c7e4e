"""What a poll of a large search costs the gateway: processor time, and bytes of the answer.

A gateway serves one running search that is folded from a ledger in memory: ASHA with three rungs,
two validations and a checkpoint of each trial, 16 trials at work on a pool of 64 slots. Each
request that the page, `rung wait` and `rung show` repeat is sent many times over one connection,
at first with 1,000 trials, then with 10,000; what is asked for must cost the same with either.
The median excludes polls that estimate the time left again; `first` includes one.
Processor time is that of the whole process, with the client of this script, which reads bytes and
no more.

    python -m benchmarks.gateway.show [--trials N,N,…] [--polls N]
"""

import argparse
import asyncio
import contextlib
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import structlog
from benchmarks.figures import figure

from rung.events import Event, Payload, decision, fact
from rung.events.allocation import AgentJoined, Slot
from rung.events.checkpoint import CheckpointStored
from rung.events.experiment import BracketPlan, ExperimentSubmitted, SearchPlanned
from rung.events.trial import (
    RunRequested,
    RunSpec,
    TrialClosed,
    TrialExited,
    TrialRequested,
    TrialStarted,
    TrialValidated,
)
from rung.gateway import serve
from rung.gateway.settings import Settings
from rung.ledger import Draft, MemoryLedger
from rung.runtime import FactWriter
from rung.storage import FolderStore

AIM_MS: Final = 5.0
ID: Final = "bench000"
OPEN: Final = 16
SLOTS: Final = 64
LENGTHS: Final = [1, 3, 9]
TOKEN: Final = "benchmark"  # noqa: S105 - of a gateway that this script starts
POLLS: Final = {
    "page, rung wait: ?trials=top": f"/experiments/{ID}?trials=top",
    "without trials: ?trials=none": f"/experiments/{ID}?trials=none",
    "rung show: 20 best trials": f"/experiments/{ID}/trials?sort=best&validations=last&limit=20",
    "page: 16 changed trials": f"/experiments/{ID}/trials?validations=last&index="
    + ",".join(map(str, range(1, 160, 10))),
    "list of experiments": "/experiments",
}
WHOLE: Final = {"all trials (as before)": f"/experiments/{ID}"}


def config(trials: int) -> dict[str, Any]:
    """Return the expanded configuration of the search."""
    return {
        "name": "a large search",
        "labels": ["bench"],
        "description": "",
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "lr": {"type": "log", "base": 10.0, "minval": -5, "maxval": -1},
            "width": {"type": "int", "minval": 16, "maxval": 512},
            "dropout": {"type": "double", "minval": 0.0, "maxval": 0.5},
            "optimizer": {"type": "categorical", "vals": ["adam", "sgd"]},
        },
        "searcher": {
            "name": "async_halving",
            "metric": "loss",
            "smaller_is_better": True,
            "time_metric": "epochs",
            "max_time": LENGTHS[-1],
            "max_trials": 2 * trials,
            "num_rungs": 3,
            "divisor": 3,
            "max_concurrent_trials": OPEN,
            "stop_once": True,
        },
        "resources": {"slots_per_trial": 1, "resource_pool": "default"},
    }


def requests(trials: int) -> list[Payload]:
    """Return the decisions on the submission: the plan, and what trials are requested."""
    plan = BracketPlan(bracket=0, lengths=LENGTHS, trials=2 * trials)
    found: list[Payload] = [
        SearchPlanned(
            experiment_id=ID, method="async_halving", time_metric="epochs", brackets=[plan]
        )
    ]
    for index in range(trials):
        hparams = {
            "lr": 10 ** (-5 + 4 * index / trials),
            "width": 16 + index % 497,
            "dropout": (index % 51) / 100,
            "optimizer": ("adam", "sgd")[index % 2],
        }
        found += [
            TrialRequested(
                experiment_id=ID,
                trial_id=f"{ID}.{index}",
                index=index,
                bracket=0,
                hparams=hparams,
                seed=index,
            ),
            RunRequested(
                experiment_id=ID,
                pool="default",
                slots=1,
                priority=42,
                max_slots=None,
                reason="a new trial",
                spec=RunSpec(
                    experiment_id=ID,
                    trial_id=f"{ID}.{index}",
                    trial_index=index,
                    run=1,
                    hparams=hparams,
                    seed=index,
                    length=LENGTHS[-1],
                    time_metric="epochs",
                    restore=[],
                    code_digest=None,
                ),
            ),
        ]
    return found


def reports(index: int, *, ended: bool) -> list[Payload]:
    """Return what the run of a trial reports."""
    of: dict[str, Any] = {"experiment_id": ID, "trial_id": f"{ID}.{index}", "run": 1}
    found: list[Payload] = [TrialStarted(**of, agent_id="a")]
    lengths = LENGTHS[: 1 + (index % 3 == 0) + (index % 9 == 0)]
    found += [
        TrialValidated(
            **of,
            steps_completed=100 * length,
            metrics={"loss": 1 / (1 + (7919 * index) % 10_007) + 1 / length, "epochs": length},
        )
        for length in lengths
    ]
    found.append(
        CheckpointStored(
            **of,
            checkpoint_id=f"{ID}.{index}.1.{100 * lengths[-1]}",
            steps_completed=100 * lengths[-1],
            size_bytes=1_000_000,
            files=3,
            digest="0" * 64,
        )
    )
    if ended:
        end = TrialExited(
            **of, agent_id="a", outcome="finished", exit_code=0, signal=None, message=""
        )
        found.append(end)
    return found


async def written(trials: int) -> MemoryLedger:
    """Return a ledger with the search, and an agent for it."""
    ledger = MemoryLedger()
    there = [Slot(id=number, kind="cuda", name="GPU") for number in range(SLOTS)]
    agent = AgentJoined(pool="default", agent_id="a", incarnation=1, hostname="a", slots=there)
    await FactWriter(ledger, source="/bench", origin="agent/a").write(agent)
    submitted: Payload = ExperimentSubmitted(
        experiment_id=ID, config=config(trials), source="name: a large search\n", code_digest=None
    )
    ended = trials - OPEN
    data = [submitted]
    for index in range(trials):
        data += reports(index, ended=index < ended)
    facts = [
        fact(it, source="/bench", origin=f"agent/{ID}", sequence=n, time=_time(n))
        for n, it in enumerate(data)
    ]
    positions = await ledger.append([Draft.of(it) for it in facts])
    closed: list[Payload] = [
        TrialClosed(
            experiment_id=ID,
            trial_id=f"{ID}.{index}",
            state="completed",
            reason="trained",
            restarts=0,
        )
        for index in range(ended)
    ]
    decisions: list[Event] = [
        decision(it, source="/bench", cause=cause, position=position, index=n)
        for decided, cause, position in (
            (requests(trials), facts[0], positions[0]),
            (closed, facts[-1], positions[-1]),
        )
        for n, it in enumerate(decided)
    ]
    await ledger.append([Draft.of(it) for it in decisions])
    return ledger


def _time(number: int) -> str:
    milliseconds = round(time.time() * 1000) - 200_000 + number
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"


@contextlib.asynccontextmanager
async def gateway(ledger: MemoryLedger) -> AsyncIterator[int]:
    """Serve a ledger; yield the port once the projections have caught up."""
    listener = socket.create_server(("127.0.0.1", 0))
    started = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        serving = asyncio.create_task(
            serve(
                ledger,
                FolderStore(Path(folder) / "objects"),
                listener=listener,
                token=TOKEN,
                settings=Settings(start_timeout=300.0),
                folder=Path(folder) / "projections",
                started=started.set,
            )
        )
        await started.wait()
        yield listener.getsockname()[1]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


class Connection:
    """One HTTP connection, of which nothing is read but the length of each answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def size(self, path: str, token: str = TOKEN) -> int:
        """Return how many bytes the body of an answer has.

        Raises:
            RuntimeError: it is none of success.
        """
        head = [f"GET /api/v1{path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}"]
        self._writer.write("\r\n".join([*head, "", ""]).encode())
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(it.split(":")[1]) for it in lines if it.startswith("content-length:"))
        body = await self._reader.readexactly(length)
        if " 200 " not in lines[0]:
            raise RuntimeError(f"{path}: {lines[0]} {body[:300]!r}")
        return length


async def measure(trials: int, polls: int) -> dict[str, tuple[float, int]]:
    """Return the median processor time in ms, and the bytes, of each request."""
    found = {}
    began = time.process_time()
    async with gateway(await written(trials)) as port:
        print(f"{trials:,} trials, folded after {time.process_time() - began:.1f} s of processor")
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
        for name, path in {**POLLS, **WHOLE}.items():
            size, times = 0, list[float]()
            for _ in range(polls if name in POLLS else 3):
                used = time.process_time()
                size = await connection.size(path)
                times.append(1000 * (time.process_time() - used))
                await asyncio.sleep(0)
            found[name] = statistics.median(times), size
            print(
                f"  {name:32} {found[name][0]:8.2f} ms  first {times[0]:8.2f} ms {size:12,} bytes"
            )
    return found


def main() -> None:
    """Measure each size; print the growth beside the aim."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", default="1000,10000")
    parser.add_argument("--polls", type=int, default=50)
    asked = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    sizes = [int(it) for it in asked.trials.split(",")]
    found = [asyncio.run(measure(trials, asked.polls)) for trials in sizes]
    first, last = found[0], found[-1]
    for name in POLLS:
        (small_ms, _), (large_ms, size) = first[name], last[name]
        figure(
            f"poll of a search of {sizes[-1]:,} trials: {name}",
            large_ms,
            "ms of CPU",
            at_most=AIM_MS,
            beside=f"{size:,} bytes; {large_ms / small_ms:.1f} times that of {sizes[0]:,} trials",
        )
    print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")


if __name__ == "__main__":
    main()
