"""Deciding beside keys that stand still: what 1,000 of them cost 100,000 others.

So many experiments are submitted to a searcher, and paused. Then the same is done again while
others are poisoned among them: of each a fact is rejected, as junk or because the searcher raises
on it, and the facts behind it wait. The figure is how fast the good ones are decided beside them,
of how fast they are without, by the processor time of the loop with its snapshots, on SQLite.

    python -m benchmarks.record.poison [--keys N] [--poisoned N]
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from benchmarks.figures import figure
from benchmarks.record.evolve import config

from rung.events import Event, Payload, fact
from rung.events.experiment import ExperimentSubmitted, KillRequested, PauseRequested
from rung.ledger import Draft, Record
from rung.ledger.sqlite.ledger import SqliteLedger
from rung.runtime import host
from rung.runtime.garbage import short_collections
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.fold import PartitionFold
from rung.searcher.processor import Searcher
from rung.searcher.state import State

AIM_RATIO: Final = 0.9
BATCH: Final = 2_000
WAITING: Final = 8
"""Facts behind each rejected one."""
_CONFIG: Final = config(1)


class Faulty(Searcher):
    """A searcher that raises when an experiment is killed, with half of that folded."""

    def evolve(self, state: State, event: Any) -> None:
        """Fold an event, or raise behind it."""
        super().evolve(state, event)
        if isinstance(event, KillRequested):
            raise TypeError(event.experiment_id)


class Clock(Observer[Any]):
    """Looks on, and stops when all facts are decided."""

    def __init__(self, facts: int) -> None:
        self.done = asyncio.Event()
        self.stuck = 0
        self._left = facts
        self._fold: PartitionFold[Any] | None = None

    def begin(self, partition: int, fold: PartitionFold[Any]) -> None:  # noqa: ARG002 - one
        """Take note of the fold."""
        self._fold = fold

    def see(self, records: Sequence[Record], decisions: Sequence[Event]) -> None:  # noqa: ARG002
        """Count, and end with the last fact."""
        self._left -= len(records)
        if self._left == 0:
            assert self._fold is not None
            self.stuck = len(self._fold.stuck)
            self.done.set()


def payloads(keys: int, poisoned: int) -> Iterator[tuple[Payload, bool]]:
    """Yield submissions of all keys, and then pauses; each with whether it is to become junk."""
    every = keys // max(poisoned, 1)
    for number in range(keys):
        yield _submitted(f"good-{number}"), False
        if poisoned and number % every == 0:
            yield _submitted(f"bad-{number}"), False
            yield KillRequested(experiment_id=f"bad-{number}"), number // every % 2 == 0
    for number in range(keys):
        yield PauseRequested(experiment_id=f"good-{number}"), False
        if poisoned and number % every == 0:
            yield from [(PauseRequested(experiment_id=f"bad-{number}"), False)] * WAITING


def _submitted(key: str) -> ExperimentSubmitted:
    return ExperimentSubmitted(experiment_id=key, config=_CONFIG, source="", code_digest=None)


def drafts(keys: int, poisoned: int) -> list[Draft]:
    """Return the facts as they are appended."""
    found = []
    for number, (data, is_junk) in enumerate(payloads(keys, poisoned)):
        event = fact(data, source="/rung/bench", origin="bench", sequence=number, time="t")
        draft = Draft.of(event)
        found.append(draft._replace(value=b"{") if is_junk else draft)
    return found


async def decide(keys: int, poisoned: int) -> float:
    """Return the processor seconds in which all facts are decided that can be."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = await SqliteLedger.open(Path(folder), partitions=1)
        found = drafts(keys, poisoned)
        for start in range(0, len(found), BATCH):
            await ledger.append(found[start : start + BATCH])
        clock = Clock(len(found))
        del found
        started = time.process_time()
        hosting = asyncio.create_task(host(ledger, Faulty(), observer=clock))
        await clock.done.wait()
        seconds = time.process_time() - started
        hosting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hosting
        assert clock.stuck == poisoned, clock.stuck
        await ledger.close()
        return seconds


async def measure(keys: int, poisoned: int) -> None:
    """Print the ratio; both sides are measured twice, in turns."""
    sides: dict[int, list[float]] = {0: [], poisoned: []}
    for _ in range(2):
        for each, seconds in sides.items():
            seconds.append(await decide(keys, each))
    alone, beside = min(sides[0]), min(sides[poisoned])
    figure(
        f"deciding {keys:,} keys beside {poisoned:,} that stand still",
        alone / beside,
        "of deciding them alone",
        at_least=AIM_RATIO,
        beside=f"{2 * keys / beside:,.0f} facts of good keys a CPU second; {2 * keys / alone:,.0f}"
        " alone",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--poisoned", type=int, default=1_000)
    asked = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with short_collections():
        asyncio.run(measure(asked.keys, asked.poisoned))
