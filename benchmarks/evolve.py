"""Evolving a recorded ledger: events a second on one core, decoding included.

The limit it is measured against is reading alone: the same records, neither decoded nor folded.
Then a ledger of a million events is opened from its snapshot.

    python benchmarks/evolve.py [--events N]
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from rung.cli.operations.components import PROCESSORS
from rung.events import fact
from rung.events.experiment import ExperimentSubmitted, KillRequested
from rung.events.trial import TrialValidated
from rung.ledger import Draft
from rung.ledger.sqlite.ledger import SqliteLedger
from rung.runtime import host
from rung.runtime.processor.fold import PartitionFold
from rung.runtime.processor.loop import recover, refold, scan_decisions

BATCH = 2_000


def config(trials: int) -> dict[str, Any]:
    """Return the expanded configuration of a random search."""
    return {
        "name": "evolve",
        "entrypoint": "true",
        "hyperparameters": {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}},
        "searcher": {
            "name": "random",
            "metric": "loss",
            "smaller_is_better": True,
            "time_metric": "batches",
            "max_time": 10**9,
            "max_trials": trials,
            "max_concurrent_trials": 0,
        },
        "resources": {"slots_per_trial": 1, "priority": 42, "resource_pool": "default"},
        "checkpoint_storage": {"save_trial_best": 1, "save_trial_latest": 1},
        "max_restarts": 5,
        "reproducibility": {"experiment_seed": 1},
    }


def drafts(events: int, trials: int) -> list[Draft]:
    """Return an experiment's submission and so many validations of its trials."""
    names: dict[str, Any] = {"experiment_id": "evolving"}
    payloads: list[Any] = [
        ExperimentSubmitted(**names, config=config(trials), source="", code_digest=None)
    ]
    payloads += [
        TrialValidated(
            **names,
            trial_id=f"evolving.{number % trials}",
            run=1,
            steps_completed=1 + number // trials,
            metrics={"loss": 1.0 / (1 + number), "accuracy": 0.5},
        )
        for number in range(events - 2)
    ]
    payloads.append(KillRequested(**names))
    result = []
    for number, data in enumerate(payloads):
        event = fact(data, source="/rung/bench", origin="bench", sequence=number, time="t")
        result.append(Draft.of(event))
    return result


async def measure(events: int) -> None:
    """Print the rates."""
    searcher = PROCESSORS[0]
    with tempfile.TemporaryDirectory() as folder:
        ledger = await SqliteLedger.open(Path(folder), partitions=1)
        recorded = drafts(events, 100)
        for start in range(0, events, BATCH):
            await ledger.append(recorded[start : start + BATCH])
        hosting = asyncio.create_task(host(ledger, searcher, snapshot_every=events // 2))
        while await ledger.snapshot("state/searcher", 0) is None:  # noqa: ASYNC110 - a bench
            await asyncio.sleep(0.05)
        while await ledger.end("searches", 0) < 301:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
        hosting.cancel()

        started = time.perf_counter()
        position = 0
        while records := await ledger.read("experiments", 0, position, BATCH):
            position = records[-1].position + 1
        reading = events / (time.perf_counter() - started)

        fold: PartitionFold[Any] = PartitionFold(searcher)
        await scan_decisions(ledger, searcher, fold, 0)
        started = time.perf_counter()
        async for _ in refold(ledger, searcher, fold, 0, until=events):
            pass
        evolving = events / (time.perf_counter() - started)
        print(f"reading alone        {reading:>12,.0f} events/s")
        print(
            f"reading and evolving {evolving:>12,.0f} events/s   "
            f"{evolving / reading:.2f} of reading alone; {evolving / 150_000:.2f} of the aim"
        )
        await ledger.close()

        started = time.perf_counter()
        ledger = await SqliteLedger.open(Path(folder), partitions=1)
        fold = await recover(ledger, searcher, 0)
        await scan_decisions(ledger, searcher, fold, 0)
        seconds = time.perf_counter() - started
        print(
            f"opening from its snapshot {seconds:.3f} s ({events:,} events; "
            f"{seconds * evolving / events:.4f} of evolving all of them)"
        )
        await ledger.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    asyncio.run(measure(parser.parse_args().events))
