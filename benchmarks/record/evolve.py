"""Evolving a recorded ledger: events a second on one core, decoding included.

The limit it is measured against is reading alone: the same records, neither decoded nor folded.
Then a ledger of a million events is opened from its snapshot, and audited as `rung audit` does it.
Last come the steps in which a random search decides that all of its trials start at once.

    python -m benchmarks.record.evolve [--events N] [--trials N]
"""

import argparse
import asyncio
import gc
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import figure
from benchmarks.search.installation import Clock

from rung.cli.operations.components import PROCESSORS, audit_all
from rung.events import fact
from rung.events.experiment import (
    ExperimentSubmitted,
    KillRequested,
    SearchContinued,
    SearchDeferred,
)
from rung.events.installation import LEVEL
from rung.events.trial import TrialValidated
from rung.ledger import Draft, Record
from rung.ledger.sqlite.ledger import SqliteLedger
from rung.runtime import host
from rung.runtime.garbage import short_collections
from rung.runtime.processor.fold import PartitionFold
from rung.runtime.processor.replay import recover, refold, scan_decisions
from rung.searcher.processor import Searcher

AIM_RATIO: Final = 0.5
AIM_AUDIT_S: Final = 30
AIM_STEP_MS: Final = 10
BATCH: Final = 2_000
MILLION: Final = 1_000_000


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
    searcher = next(it for it in PROCESSORS if it.name == "searcher")
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
        figure(
            "reading and folding a ledger",
            evolving / reading,
            "of reading alone",
            at_least=AIM_RATIO,
            beside=f"{evolving:,.0f} events/s; {reading:,.0f} reading alone",
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

        started, used = time.perf_counter(), time.process_time()
        audited = await audit_all(ledger)
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
        assert audited.same, audited
        figure(
            f"audit of {MILLION:,} events",
            seconds * MILLION / events,
            "s",
            at_most=AIM_AUDIT_S,
            beside=f"{cpu_s * MILLION / events:.1f} s of CPU; measured over {events:,}; "
            f"{seconds * reading / events:.1f} times reading alone",
        )
        await ledger.close()


def steps(trials: int) -> None:
    """Print how long the steps of a random search take, all of whose trials start at once."""
    clock = Clock()
    gc.callbacks.append(clock.note)
    fold: PartitionFold[Any] = PartitionFold(Searcher())
    names: dict[str, Any] = {"experiment_id": "evolving"}
    data: Any = ExperimentSubmitted(
        **names, config=config(trials), source="", code_digest=None, level=LEVEL
    )
    spent: list[float] = []
    sizes: list[int] = []
    more = True
    while more:
        number = len(spent)
        event = fact(data, source="/rung/bench", origin="bench", sequence=number, time="t")
        topic, key, value = Draft.of(event)
        started = clock.now()
        folded = fold.fold(Record(topic, 0, number, key, value))
        sizes.append(sum(len(Draft.of(it).value) for it in folded.new))
        spent.append(1000 * (clock.now() - started))
        fold.recorded.appended(len(folded.new))
        more = any(isinstance(it.data, SearchDeferred) for it in folded.new)
        data = SearchContinued(**names)
    figure(
        f"random search, {trials:,} trials at once: the longest step",
        max(spent),
        "ms of CPU",
        at_most=AIM_STEP_MS,
        beside=f"{len(spent):,} steps, at most {max(sizes) / 1000:,.0f} kB each; a collection of "
        f"garbage took {1000 * max(clock.collections_s, default=0.0):,.0f} ms at most",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=100_000)
    asked = parser.parse_args()
    asyncio.run(measure(asked.events))
    with short_collections():
        steps(asked.trials)
