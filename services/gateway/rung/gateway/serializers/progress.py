"""Progress of an experiment: training done against training expected.

A bracket whose trials have lengths trains as many of them to each as its plan expects. Where the
plan leaves that open, every trial is expected to train to its first rung and, of n trials,
n * l[0] / l[k] of them (at least one) on to rung k: that is what successive halving does, whatever
its divisor. A bracket without lengths is counted in trials. An asynchronous search may train
more than that; the time left therefore covers at least the runs that are asked for already.
"""

from typing import NamedTuple

from rung.events.experiment import BracketPlan
from rung.gateway.projections.experiment import Experiment, Trial

_NEARLY: float = 0.99
"""The most that an experiment has before it has ended."""


class Progress(NamedTuple):
    """How far an experiment is."""

    fraction: float
    """0 to 1; 1 only of an ended one."""
    units_trained: float
    units_full: float | None
    """Those of every trial at full length, None where there is no length."""
    eta_seconds: float | None
    """Until it ends; None if unknown."""


def progress_of(experiment: Experiment, now: float) -> Progress:
    """Return how far an experiment is at a time (Unix seconds)."""
    full = _full(experiment)
    if experiment.ended is not None:
        return Progress(1.0, experiment.units, full, None)
    fraction, expected = _fraction(experiment)
    eta = None
    if expected is not None and not experiment.paused:
        left = max(expected * (1.0 - fraction), _outstanding(experiment))
        eta = experiment.throughput.seconds_for(left, now)
    return Progress(min(fraction, _NEARLY), experiment.units, full, eta)


def rung_of(trial: Trial, lengths: list[int]) -> int | None:
    """Return the highest rung whose length a trial has reached, None before the first."""
    reached = sum(1 for length in lengths if trial.time >= length)
    return reached - 1 if reached else None


def lengths_of(experiment: Experiment, bracket: int) -> list[int]:
    """Return the lengths of a bracket's rungs."""
    for plan in experiment.plan:
        if plan.bracket == bracket:
            return plan.lengths
    return []


def _full(experiment: Experiment) -> float | None:
    if not experiment.plan or not all(plan.lengths for plan in experiment.plan):
        return None
    created = [0] * len(experiment.plan)
    place = {plan.bracket: index for index, plan in enumerate(experiment.plan)}
    for trial in experiment.trials:
        created[place.get(trial.bracket, 0)] += 1
    pairs = zip(experiment.plan, created, strict=True)
    if experiment.ended is not None:
        return float(sum(plan.lengths[-1] * count for plan, count in pairs))
    return float(sum(plan.lengths[-1] * max(plan.trials, count) for plan, count in pairs))


def _fraction(experiment: Experiment) -> tuple[float, float | None]:
    """Return the fraction done, and the units expected in all if they are known."""
    if not experiment.plan:
        return 0.0, None
    by_bracket: dict[int, list[Trial]] = {plan.bracket: [] for plan in experiment.plan}
    for trial in experiment.trials:
        by_bracket.setdefault(trial.bracket, []).append(trial)
    if not all(plan.lengths for plan in experiment.plan):
        planned = sum(plan.trials for plan in experiment.plan)
        closed = sum(1 for trial in experiment.trials if trial.closed)
        return _ratio(closed, max(planned, len(experiment.trials))), None
    expected = [_expected(plan) for plan in experiment.plan]
    done = sum(
        units * _bracket_fraction(plan, by_bracket[plan.bracket], units)
        for plan, units in zip(experiment.plan, expected, strict=True)
    )
    return _ratio(done, sum(expected)), sum(expected)


def _outstanding(experiment: Experiment) -> float:
    """Return the units that are still to be trained if no trial goes beyond its next rung."""
    units = 0.0
    for plan in experiment.plan:
        trials = [trial for trial in experiment.trials if trial.bracket == plan.bracket]
        units += max(plan.trials - len(trials), 0) * plan.lengths[0]
        for trial in trials:
            if trial.closed is None and trial.stopped is None and trial.run > trial.over:
                ahead = (length for length in plan.lengths if length > trial.time)
                units += next(ahead, trial.time) - trial.time
    return units


def _bracket_fraction(plan: BracketPlan, trials: list[Trial], expected: float) -> float:
    trained = sum(min(trial.time, plan.lengths[-1]) for trial in trials)
    closed = sum(1 for trial in trials if trial.closed)
    return max(_ratio(trained, expected), _ratio(closed, max(plan.trials, len(trials))))


def _expected(plan: BracketPlan) -> float:
    units, before = 0.0, 0
    for rung, length in enumerate(plan.lengths):
        halved = max(plan.trials * plan.lengths[0] // max(length, 1), 1)
        trained = plan.trained[rung] if plan.trained else halved
        units += trained * (length - before)
        before = length
    return units


def _ratio(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 0.0
