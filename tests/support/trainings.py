"""Trainings that go on until a test stops them, and what holds where they noticed nothing."""

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from rung.events import LedgerUnavailable, decode, topic
from rung.events.allocation import AgentJoined, AllocationLost
from rung.events.checkpoint import CheckpointStored
from rung.events.metric import MetricsReported
from rung.events.trial import TrialExited, TrialStarted
from rung.ledger import Ledger
from rung.ledger.factory import open_ledger
from rung.storage import ObjectStore
from support.user import User, wait_for

SECONDS: Final = float(os.environ.get("RUNG_OUTLIVE_SECONDS", "25"))
"""For how long Rung is disturbed; `make soak` sets ten minutes."""
SEED: Final = int(os.environ.get("RUNG_OUTLIVE_SEED", time.time_ns() % 10**6))
_CODE: Final = Path(__file__).parent / "outlive"
_TOPICS: Final = (topic.EXPERIMENTS, topic.POOLS, topic.PLACEMENTS, topic.METRICS)
_PAUSE_S: Final = 2.0
_TRAINS_S: Final = 180.0


class Record:
    """What a ledger says, each event once."""

    def __init__(self, where: str | Path, objects: ObjectStore | None = None) -> None:
        self._where = where
        self._objects = objects
        self._loop = asyncio.new_event_loop()
        self._ledger: Ledger | None = None
        self._positions: Counter[tuple[str, int]] = Counter()
        self._seen: set[Any] = set()
        self._events: list[Any] = []

    def of(self, kind: Any, experiment: str | None = None) -> list[Any]:
        """Return the facts of a kind so far, of one experiment if that is given."""
        self._loop.run_until_complete(self._read())
        found = [data for data in self._events if isinstance(data, kind)]
        if experiment is None:
            return found
        return [data for data in found if data.experiment_id == experiment]

    def close(self) -> None:
        """Let go of the ledger."""
        if self._ledger is not None:
            self._loop.run_until_complete(self._ledger.close())
        self._loop.close()

    async def _read(self) -> None:
        while True:
            with contextlib.suppress(LedgerUnavailable):  # a busy machine: it is asked again
                await self._read_on()
                return

    async def _read_on(self) -> None:
        if self._ledger is None:
            self._ledger = await open_ledger(self._where, self._objects)
        ledger = self._ledger
        for name in _TOPICS:
            for partition in range(ledger.partitions(name)):
                place = (name, partition)
                while records := await ledger.read(*place, self._positions[place], 1000):
                    self._positions[place] = records[-1].position + 1
                    for record in records:
                        event = decode(record.value)
                        once = (event.origin, event.sequence, event.cause, event.causeindex)
                        if once not in self._seen:
                            self._seen.add(once)
                            self._events.append(event.data)


class Trainings:
    """Trainings of a user, each of which notes its steps."""

    def __init__(self, user: User, record: Record, folder: Path) -> None:
        self._user = user
        self._record = record
        self._folder = folder
        self._stop = folder / "stop"
        self._ranks: dict[str, int] = {}
        """Of each experiment."""

    def train(self, script: str, slots: int = 1) -> str:
        """Submit a trial that trains until `stop`; return its experiment."""
        notes = self._folder / f"notes-{len(self._ranks)}"
        notes.mkdir()
        config = {
            "name": f"{script}-{len(self._ranks)}",
            "entrypoint": f"python3 {script}",
            "resources": {"slots_per_trial": slots},
            "hyperparameters": {
                "stop": str(self._stop),
                "notes": str(notes),
                "global_batch_size": 8,
            },
            "searcher": {
                "name": "single",
                "metric": "val_loss" if script == "with_keras.py" else "loss",
                "max_time": 10**9,
                "time_metric": "batches",
            },
            "scheduling_unit": 1,
            "min_validation_period": {"batches": 40},
            "min_checkpoint_period": {"batches": 100},
        }
        experiment = self._user.submit(config, code=_CODE)
        self._ranks[experiment] = slots
        return experiment

    def trained(self, experiment: str, rank: int = 0) -> list[tuple[int, int]]:
        """Return the steps that a rank has noted, each with its process."""
        number = [*self._ranks].index(experiment)
        try:
            lines = (self._folder / f"notes-{number}" / str(rank)).read_text().splitlines()
        except OSError:
            return []
        found = [line.partition(" ") for line in lines]
        return [(int(step), int(pid)) for step, _, pid in found]

    def reported(self, experiment: str) -> Counter[int]:
        """Return the steps on record, and how often each."""
        reports = self._record.of(MetricsReported, experiment)
        rows = [row for data in reports for row in data.rows if row.kind == "training"]
        return Counter(row.step for row in rows)

    def go_on(self) -> None:
        """Wait until each training has a step on record that it did not have before."""
        for experiment in self._ranks:
            before = max(self.reported(experiment), default=0)
            wait_for(
                lambda experiment=experiment, before=before: (  # type: ignore[misc]
                    max(self.reported(experiment), default=0) > before
                ),
                f"{experiment} trains beyond step {before}",
                _TRAINS_S,
            )

    def stop(self) -> None:
        """Have them end, and wait until they have."""
        self._stop.touch()
        for experiment in self._ranks:
            assert self._user.ended(experiment)["state"] == "completed"

    def assert_undisturbed(self) -> None:
        """No run was started twice, no step trained twice, each is on record once.

        So is each checkpoint, of which the newest is that of the last step.
        """
        lost = self._record.of(AllocationLost)
        assert not lost, lost
        for experiment, ranks in self._ranks.items():
            assert len(self._record.of(TrialStarted, experiment)) == 1, self._ends(experiment)
            assert len(self._record.of(TrialExited, experiment)) == 1, self._ends(experiment)
            reported = self.reported(experiment)
            everything = list(range(1, max(reported) + 1))
            assert sorted(reported) == everything, _holes(experiment, reported)
            assert set(reported.values()) == {1}, experiment
            for rank in range(ranks):
                trained = self.trained(experiment, rank)
                assert [step for step, _ in trained] == everything, (experiment, rank)
                assert len({pid for _, pid in trained}) == 1, (experiment, rank)
            stored = Counter(
                data.steps_completed for data in self._record.of(CheckpointStored, experiment)
            )
            assert max(stored) == everything[-1], (experiment, stored)
            assert set(stored.values()) == {1}, (experiment, stored)
            self._user.rung("audit", experiment)

    def _ends(self, experiment: str) -> list[str]:
        """Return why each run of an experiment ended."""
        return [f"run {it.run}: {it.message}" for it in self._record.of(TrialExited, experiment)]


def _holes(experiment: str, steps: Iterable[int]) -> str:
    found = sorted(steps)
    missing = sorted(set(range(1, found[-1] + 1)).difference(found))
    return f"{experiment}: {len(missing)} steps are missing, from {missing[0]} to {missing[-1]}"


def disturb(trainings: Trainings, faults: dict[str, Callable[[], None]], record: Record) -> None:
    """Inflict faults at random for `SECONDS` beside trainings, which must not notice any."""
    _say(f"RUNG_OUTLIVE_SEED={SEED}")
    chance = random.Random(SEED)  # noqa: S311 - repeatable, not secret
    trainings.go_on()
    joined = len(record.of(AgentJoined))
    begun, done = time.monotonic(), list[str]()
    while time.monotonic() - begun < SECONDS:
        done.append(chance.choice(list(faults)))
        _say(f"{time.monotonic() - begun:.1f} s: {done[-1]}")
        faults[done[-1]]()
        time.sleep(chance.uniform(0.0, _PAUSE_S))  # until the next one, whatever is under way
    trainings.go_on()
    trainings.stop()
    trainings.assert_undisturbed()
    assert len(record.of(AgentJoined)) == joined


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - pytest shows it where a test fails
