"""What the searcher knows of one trial."""

import math
import sys
from typing import Any, Final

from msgspec import Struct, field

from rung.events.trial import MetricValue, Withdrawal

WORST: Final = sys.float_info.max
"""The cost of a trial that failed or reported no finite number: no other is higher.

A number rather than infinity, for which JSON has no word.
"""

_KEPT: Final = 4
_RESTORED: Final = 2


class Saved(Struct):
    """A checkpoint that a trial may go on from."""

    steps: int
    checkpoint_id: str


class Trial(Struct):
    """One trial, its current run and its results.

    Attributes:
        rung: for which it trains, or at which it rests, in a method that promotes.
        length: how far its current run goes.
        run: number of the current run, 0 before the first.
        running: the current run was requested and has not ended.
        withdrawn: how the current run was withdrawn, if it was.
        restarts: how many of its runs failed.
        fault: the kind of fault that its last failed run ended with, empty if that is not known.
        fault_steps: the last step that this run spoke of.
        repeats: how many runs failed one after the other with this fault at this step.
        time: of the newest report, -1 before the first.
        cost: of the newest report.
        results: per rung of its bracket, the cost of the first report at or past its length.
        overrun: reports after the first at or past the length of its run.
        due_steps: the steps of the first report at or past the length of its run.
        checkpoints: newest first.
        stopped: why the search gave it up, if it did.
        closed: it will never train again; its details are forgotten.
    """

    index: int
    bracket: int
    hparams: dict[str, Any]
    seed: int
    rung: int = 0
    length: int | None = None
    run: int = 0
    running: bool = False
    withdrawn: Withdrawal | None = None
    restarts: int = 0
    fault: str = ""
    fault_steps: int | None = None
    repeats: int = 0
    time: float = -1.0
    cost: float = WORST
    results: list[float] = field(default_factory=list[float])
    overrun: int = 0
    due_steps: int | None = None
    checkpoints: list[Saved] = field(default_factory=list[Saved])
    stopped: str | None = None
    closed: bool = False

    @property
    def reached(self) -> bool:
        """Whether it has validated at or past the length of its run."""
        return self.length is not None and self.time >= self.length

    @property
    def delivered(self) -> bool:
        """Whether it has validated its run's length and a checkpoint of that is complete.

        However the run then ended, there is nothing left to train, and training on from that
        checkpoint would go past the length.
        """
        saved = self.checkpoints[0].steps if self.checkpoints else -1
        return self.due_steps is not None and saved >= self.due_steps

    @property
    def restore(self) -> list[str]:
        """The checkpoints that its next run starts from, best choice first."""
        return [saved.checkpoint_id for saved in self.checkpoints[:_RESTORED]]

    def report(
        self, steps: int, time: float, cost: float, lengths: list[int], *, timed: bool
    ) -> bool:
        """Fold a report; return whether it was news.

        A restarted run reports again what was seen before; that counts once.

        Args:
            steps: batches completed.
            time: in units of the time metric.
            cost: of the searcher's metric, the lower the better.
            lengths: of the rungs of the trial's bracket.
            timed: the script itself gave the time, so that an overrun is beyond doubt.
        """
        if time <= self.time:
            return False
        if timed and self.reached:
            self.overrun += 1
        self.time, self.cost = time, cost
        if self.due_steps is None and self.reached:
            self.due_steps = steps
        while len(self.results) < len(lengths) and time >= lengths[len(self.results)]:
            self.results.append(cost)
        return True

    def start(self, run: int, length: int | None) -> None:
        """Fold that a new run was requested."""
        if length != self.length:
            self.length, self.overrun, self.due_steps = length, 0, None
        self.run, self.running, self.withdrawn = run, True, None

    def fail(self, fault: str, steps: int | None) -> None:
        """Fold that the current run failed."""
        self.restarts += 1
        same = fault and (fault, steps) == (self.fault, self.fault_steps)
        self.repeats = self.repeats + 1 if same else min(len(fault), 1)
        self.fault, self.fault_steps = fault, steps

    def store(self, steps: int, checkpoint_id: str) -> None:
        """Fold that a checkpoint is complete; of two at one step the later is the newer."""
        place = 0
        while place < len(self.checkpoints) and self.checkpoints[place].steps > steps:
            place += 1
        self.checkpoints.insert(place, Saved(steps, checkpoint_id))
        del self.checkpoints[_KEPT:]

    def damage(self, checkpoint_id: str) -> None:
        """Fold that a checkpoint cannot be restored."""
        self.checkpoints = [
            kept for kept in self.checkpoints if kept.checkpoint_id != checkpoint_id
        ]

    def close(self) -> None:
        """Fold the trial's end; what only a living trial needs is forgotten."""
        self.closed, self.running = True, False
        self.hparams, self.results, self.checkpoints = {}, [], []


def cost_of(value: MetricValue | None, *, smaller_is_better: bool) -> float:
    """Return a metric as a cost, the lower the better; what is no finite number is the worst."""
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return WORST
    return float(value) if smaller_is_better else -float(value)
