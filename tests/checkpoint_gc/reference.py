"""The rules of retention a second time, over all that ever happened, as plainly as can be."""

import math
from typing import NamedTuple

from rung.events import Payload
from rung.events.allocation import AllocationLost
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeletionRequested,
    CheckpointPinned,
    CheckpointStored,
)
from rung.events.experiment import RetentionChanged
from rung.events.trial import TrialClosed, TrialExited, TrialValidated


class Wish(NamedTuple):
    """An experiment's policy."""

    experiment_best: int
    trial_best: int
    trial_latest: int
    smaller_is_better: bool


class Reference:
    """One experiment; names what must be there, and what may not be."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.facts: list[Payload] = []
        self.stored: list[CheckpointStored] = []
        self.late: set[str] = set()
        self.gone: set[str] = set()

    def tell(self, fact: Payload) -> list[str]:
        """Fold a fact and return what must be retired now, sorted."""
        self.facts.append(fact)
        if isinstance(fact, CheckpointStored):
            self._store(fact)
        if isinstance(fact, RetentionChanged):
            self.wish = Wish(
                fact.save_experiment_best,
                fact.save_trial_best,
                fact.save_trial_latest,
                self.wish.smaller_is_better,
            )
        if isinstance(fact, CheckpointDeletionRequested) and self._may_go(fact):
            self.gone.add(fact.checkpoint_id)
            return [fact.checkpoint_id]
        retired = {found.checkpoint_id for found in self.there()} - self.wanted()
        self.gone |= retired
        return sorted(retired)

    def _store(self, fact: CheckpointStored) -> None:
        self.stored.append(fact)
        over = [
            known.run
            for known in self.facts
            if isinstance(known, TrialExited | AllocationLost) and known.trial_id == fact.trial_id
        ]
        if over and fact.run <= max(over):
            self.late.add(fact.checkpoint_id)

    def _may_go(self, fact: CheckpointDeletionRequested) -> bool:
        there = {found.checkpoint_id: found.trial_id for found in self.there()}
        if fact.checkpoint_id not in there:
            return False
        if fact.checkpoint_id in self.pinned() and not fact.despite:
            return False
        trial = there[fact.checkpoint_id]
        return trial in self.ended() or fact.checkpoint_id not in self.restorable(trial)

    def there(self) -> list[CheckpointStored]:
        """Return the checkpoints that were not retired, in order of arrival."""
        return [found for found in self.stored if found.checkpoint_id not in self.gone]

    def wanted(self) -> set[str]:
        """Return the checkpoints that some rule names."""
        whole = [found for found in self.there() if found.checkpoint_id not in self._damaged()]
        named = self._best(whole, self.wish.experiment_best)
        for trial_id in sorted({found.trial_id for found in whole}):
            own = [found for found in whole if found.trial_id == trial_id]
            best = self._best(own, self.wish.trial_best)
            if self.wish.trial_best and not best:
                best = self._nearest(trial_id, own)
            named |= best
            named |= self._latest(own, self.wish.trial_latest)
            if trial_id not in self.ended():
                named |= self.restorable(trial_id)
        return named | self.pinned()

    def restorable(self, trial_id: str) -> set[str]:
        """Return what a run of the trial that began now might be told to start from."""
        whole = [found for found in self.there() if found.checkpoint_id not in self._damaged()]
        own = [found for found in whole if found.trial_id == trial_id]
        in_time = [found for found in own if found.checkpoint_id not in self.late]
        return self._latest(own, 2) | self._latest(in_time, 2)

    def pinned(self) -> set[str]:
        """Return what is pinned and there."""
        pins = {fact.checkpoint_id for fact in self.facts if isinstance(fact, CheckpointPinned)}
        return pins & {found.checkpoint_id for found in self.there()}

    def ended(self) -> set[str]:
        """Return the trials that will never train again."""
        return {fact.trial_id for fact in self.facts if isinstance(fact, TrialClosed)}

    def _damaged(self) -> set[str]:
        # A report of damage counts if the checkpoint was known by then.
        known: set[str] = set()
        found: set[str] = set()
        for fact in self.facts:
            if isinstance(fact, CheckpointStored):
                known.add(fact.checkpoint_id)
            if isinstance(fact, CheckpointDamaged) and fact.checkpoint_id in known:
                found.add(fact.checkpoint_id)
        return found

    def _nearest(self, trial_id: str, among: list[CheckpointStored]) -> set[str]:
        """Return the checkpoint that is nearest to the trial's best validation."""
        newest: dict[int, tuple[int, int, float | str]] = {}
        for place, fact in enumerate(self.facts):
            if (
                isinstance(fact, TrialValidated)
                and fact.trial_id == trial_id
                and "loss" in fact.metrics
            ):
                value = (fact.run, place, fact.metrics["loss"])
                newest[fact.steps_completed] = max(
                    newest.get(fact.steps_completed, (0, 0, 0.0)), value, key=lambda it: it[:2]
                )
        sign = 1 if self.wish.smaller_is_better else -1
        values = {
            steps: sign * value
            for steps, (_, _, value) in newest.items()
            if not isinstance(value, str) and math.isfinite(value)
        }
        if not values or not among:
            return set()
        best = min(values, key=lambda steps: (values[steps], steps))
        near = min(
            among[::-1], key=lambda it: (abs(it.steps_completed - best), -it.steps_completed)
        )
        return {near.checkpoint_id}

    def _cost(self, found: CheckpointStored) -> float | None:
        reports = [
            fact
            for fact in self.facts
            if isinstance(fact, TrialValidated)
            and (fact.trial_id, fact.steps_completed) == (found.trial_id, found.steps_completed)
            and "loss" in fact.metrics
        ]
        own = [fact for fact in reports if fact.run == found.run]
        newest = max((fact.run for fact in reports), default=0)
        values = [fact.metrics["loss"] for fact in own or reports if own or fact.run == newest]
        if not values or isinstance(values[-1], str) or not math.isfinite(values[-1]):
            return None
        return values[-1] if self.wish.smaller_is_better else -values[-1]

    def _best(self, among: list[CheckpointStored], count: int) -> set[str]:
        ranks = [
            (cost, found.steps_completed, found.checkpoint_id)
            for found in among
            if (cost := self._cost(found)) is not None
        ]
        return {name for _, _, name in sorted(ranks)[:count]}

    @staticmethod
    def _latest(among: list[CheckpointStored], count: int) -> set[str]:
        by_age = sorted(among, key=lambda found: found.steps_completed)
        return {found.checkpoint_id for found in by_age[::-1][:count]}
