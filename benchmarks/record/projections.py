"""The gateway's projections over a long ledger: time to answer, time to catch up, and memory.

A ledger of finished searches is generated once, of 20 trials with 20 validations and two
checkpoints each. A process of its own then starts the projections without files, and another one
with them. The limit that catching up is measured against is reading and decoding the same records.
Then copies of the files are published, and a third process starts from these.

    python -m benchmarks.record.projections [--events N] [--folder FOLDER]
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import figure

from rung.events import Event, Payload, decision, fact, topic
from rung.events.checkpoint import CheckpointStored
from rung.events.codec import decode
from rung.events.experiment import ExperimentEnded, ExperimentSubmitted
from rung.events.trial import TrialClosed, TrialExited, TrialRequested, TrialValidated
from rung.gateway.projections.experiments import ALL, Selection
from rung.gateway.projections.filter import conditions_of
from rung.gateway.projections.read_models import ReadModels
from rung.ledger import Draft, Record
from rung.ledger.sqlite.ledger import SqliteLedger
from rung.storage import FolderStore

TRIALS = 20
VALIDATIONS = 20
BATCH = 2_000
READING = "reading_s"
FOLDING = "folding_s"
COPIED_S_PER_FACT = 30 / 10_000_000
"""The aim for a start from copies."""


def config(number: int) -> dict[str, Any]:
    """Return the expanded configuration of a random search."""
    return {
        "name": f"search {number % 997} of digits",
        "labels": ["bench", f"team-{number % 7}"],
        "description": f"run number {number}",
        "entrypoint": "true",
        "hyperparameters": {"learning_rate": {"type": "double", "minval": 0.0, "maxval": 1.0}},
        "searcher": {
            "name": "random",
            "metric": "loss",
            "smaller_is_better": True,
            "time_metric": "batches",
            "max_time": 10 * VALIDATIONS,
            "max_trials": TRIALS,
        },
        "resources": {"slots_per_trial": 1, "resource_pool": "default"},
    }


class Writer:
    """Writes finished searches."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self.ledger = ledger
        self.facts = 0
        self.records = 0

    async def search(self, number: int) -> None:
        """Append one search: facts, then the decisions on its first and last."""
        name = f"{number:08d}"
        times = (number + n for n in range(10**9))
        data: list[Payload] = [
            ExperimentSubmitted(
                experiment_id=name, config=config(number), source="name: x\n", code_digest=None
            )
        ]
        for index in range(TRIALS):
            data += self._trial(name, f"{name}.{index}")
        events = [
            fact(it, source="/bench", origin=f"agent/{name}", sequence=n, time=_time(next(times)))
            for n, it in enumerate(data)
        ]
        positions = await self._append(events)
        first = [
            TrialRequested(
                experiment_id=name,
                trial_id=f"{name}.{index}",
                index=index,
                bracket=0,
                hparams={"learning_rate": index / TRIALS},
                seed=index,
            )
            for index in range(TRIALS)
        ]
        last: list[Payload] = [
            TrialClosed(
                experiment_id=name,
                trial_id=f"{name}.{index}",
                state="completed",
                reason="trained",
                restarts=0,
            )
            for index in range(TRIALS)
        ]
        last.append(
            ExperimentEnded(experiment_id=name, state="completed", reason="all trials are closed")
        )
        await self._append(
            [
                decision(it, source="/bench", cause=cause, position=position, index=n)
                for decided, cause, position in (
                    (first, events[0], positions[0]),
                    (last, events[-1], positions[-1]),
                )
                for n, it in enumerate(decided)
            ]
        )
        self.facts += len(events)

    async def _append(self, events: list[Event]) -> list[int]:
        self.records += len(events)
        return await self.ledger.append([Draft.of(it) for it in events])

    def _trial(self, name: str, trial_id: str) -> list[Payload]:
        of: dict[str, Any] = {"experiment_id": name, "trial_id": trial_id, "run": 1}
        found: list[Payload] = [
            TrialValidated(
                **of,
                steps_completed=10 * (n + 1),
                metrics={"loss": 1.0 / (n + 1), "accuracy": 0.5, "batches": 10.0 * (n + 1)},
            )
            for n in range(VALIDATIONS)
        ]
        found += [
            CheckpointStored(
                **of,
                checkpoint_id=f"{trial_id}-{n}",
                steps_completed=100 * (n + 1),
                size_bytes=1_000_000,
                files=3,
                digest="0" * 64,
            )
            for n in range(2)
        ]
        found.append(
            TrialExited(
                **of, agent_id="a", outcome="finished", exit_code=0, signal=None, message=""
            )
        )
        return found


def _time(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + second))


async def write(folder: Path, events: int) -> None:
    """Write a ledger of so many facts."""
    ledger = await SqliteLedger.open(folder)
    writer, number = Writer(ledger), 0
    while writer.facts < events:
        await asyncio.gather(*(writer.search(number + n) for n in range(4)))
        number += 4
    await ledger.close()
    print(f"{writer.facts:,} facts and {writer.records - writer.facts:,} decisions")


async def read(folder: Path) -> None:
    """Read and decode everything that the projections read; note its processor time."""
    ledger = await SqliteLedger.open(folder)
    started, count = time.perf_counter(), 0
    for name in (topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS):
        for partition in range(ledger.partitions(name)):
            position = 0
            while records := await ledger.read(name, partition, position, BATCH):
                await asyncio.to_thread(_decode, records)
                position += len(records)
                count += len(records)
    took = time.perf_counter() - started
    print(
        f"reading and decoding alone: {took:.1f} s, {time.process_time():.1f} s of processor time"
    )
    print(f"that is {count / took:,.0f} records/s")
    (folder.parent / READING).write_text(str(time.process_time()))
    await ledger.close()


def _decode(records: list[Record]) -> None:
    for record in records:
        decode(record.value)


async def start(folder: Path, files: Path) -> None:
    """Start the projections, answer, catch up, and tell how long that took."""
    ledger = await SqliteLedger.open(folder)
    models = ReadModels(ledger, files)
    started = time.perf_counter()
    await models.start(wait_s=2.0)
    await models.experiments(Selection())
    print(
        f"first answer after {time.perf_counter() - started:.2f} s, {models.behind() or 'whole'}"
    )
    stalls = []  # in processor time of the process, which other processes do not lengthen
    answers = []
    while models.behind() is not None:
        before = time.process_time()
        await asyncio.sleep(0)
        stalls.append(time.process_time() - before)
        if len(stalls) % 500 == 0:
            answers.append(await _timed(lambda: models.experiments(Selection())))
    took = time.perf_counter() - started
    cpu_s, reading_s = time.process_time(), float((files.parent / READING).read_text())
    print(f"caught up after {took:.1f} s, {cpu_s:.1f} s of processor")
    if not (files.parent / FOLDING).exists():  # the first start
        (files.parent / FOLDING).write_text(str(took))
        stalls.sort()
        figure(
            "projections: catching up with a ledger",
            cpu_s,
            "s of CPU",
            beside=f"{cpu_s / reading_s:.1f} times reading and decoding alone; event loop held for"
            f" {1e3 * stalls[len(stalls) // 2]:.1f} ms at the median,"
            f" {1e3 * stalls[-len(stalls) // 1000]:.1f} ms at p99.9",
        )
    if answers:
        print(f"lists meanwhile: {1e3 * max(answers):.0f} ms at most")
    for what, query in _queries(models).items():
        times = sorted([await _timed(query) for _ in range(5)])
        print(f"{what}: {1e3 * times[2]:.1f} ms")
    await models.close()
    await ledger.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"memory at most: {peak >> 10} MiB")


async def copy(folder: Path, files: Path, events: int) -> None:
    """Publish copies of the files, then start without files; tell how long both took."""
    ledger = await SqliteLedger.open(folder)
    objects = FolderStore(files.parent / "objects")
    folding_s = float((files.parent / FOLDING).read_text())
    times = []
    for own in (files, files.parent / "empty"):
        models = ReadModels(ledger, own, objects)
        times.append(await _timed(partial(models.start, wait_s=600.0)))
        assert models.behind() is None
        times.append(await _timed(partial(models.publish, worth=1)))
        await models.close()
    _, publishing_s, copied_s, _ = times
    figure(
        "projections: starting from copies",
        copied_s,
        "s",
        at_most=COPIED_S_PER_FACT * events,
        beside=f"{folding_s / copied_s:.0f} times as fast as folding {events:,} facts;"
        f" copies were published in {publishing_s:.1f} s",
    )
    await ledger.close()


def _queries(models: ReadModels) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "a page of the newest": lambda: models.experiments(Selection()),
        "a page by name": lambda: models.experiments(Selection(sort="name", descending=False)),
        "a page of a search": lambda: models.experiments(_filtered("team 3 learn")),
        "a page with a label": lambda: models.experiments(_filtered("label:team-5")),
        "a page by hyperparameter": lambda: models.experiments(_filtered("hp.learning_rate<0.1")),
        "a page by metric": lambda: models.experiments(_filtered("metric.loss<0.2 -label:x")),
        "an experiment": lambda: models.experiment("00000007", validations=ALL),
        "a checkpoint": lambda: models.checkpoint("00000007.3-1"),
    }


def _filtered(text: str) -> Selection:
    return Selection(conditions_of(text, now=datetime.now(UTC)))


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def main() -> None:
    """Run the benchmark, or one of its parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--part", choices=["write", "read", "start", "copy"])
    given = parser.parse_args()
    if given.part is not None:
        ledger = given.folder / "ledger"
        work = {
            "write": lambda: write(ledger, given.events),
            "read": lambda: read(ledger),
            "start": lambda: start(ledger, given.folder / "projections"),
            "copy": lambda: copy(ledger, given.folder / "projections", given.events),
        }
        asyncio.run(work[given.part]())
        return
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        for part in ("write", "read", "start", "start", "copy"):
            command = [
                sys.executable,
                "-m",
                "benchmarks.record.projections",
                "--part",
                part,
                "--folder",
                str(folder),
            ]
            subprocess.run([*command, "--events", str(given.events)], check=True)
        size = sum(path.stat().st_size for path in (folder / "projections").iterdir())
        print(f"files: {size >> 20} MiB")


if __name__ == "__main__":
    main()
