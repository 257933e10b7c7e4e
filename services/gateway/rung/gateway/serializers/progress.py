"""Progress of an experiment: training done against training expected.

Each bracket whose trials have lengths is expected to train so many trials over each stretch
between two rungs: as many as its plan or its method has it. What is trained beyond that on one
stretch makes up for nothing on another, and no bracket is further than it has created trials. A
bracket without lengths is counted in trials. So progress never shrinks while trials are not
replaced, and an asynchronous search that trains more than expected does not seem nearly over.
"""

from array import array
from collections import OrderedDict
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from rung.events.errors import InvalidConfig
from rung.events.experiment import BracketPlan
from rung.gateway.projections.experiment import Experiment, Trial
from rung.methods.method import SearchOptions
from rung.methods.table import read_options

_NEARLY: Final = 0.99
"""The most that an experiment has that is not completed."""
_ANY: Final = SearchOptions(metric="")
_SUMS_MAX: Final = 256
_sums: Final = OrderedDict[bytes, "array[float]"]()
"""Of a rung of a plan: how many trials go on after so many results; the newest used last."""
_sums_lock: Final = Lock()


class Progress(NamedTuple):
    """How far an experiment is."""

    fraction: float
    """0 to 1; 1 only of a completed one."""
    units_trained: float
    units_full: float | None
    """Those of every trial at full length, None where there is no length."""


def progress_of(experiment: Experiment) -> Progress:
    """Return how far an experiment is."""
    full = _full(experiment)
    completed = experiment.ended == "completed"
    fraction = 1.0 if completed else min(_fraction(experiment), _NEARLY)
    return Progress(fraction, experiment.units, full)


def options_of(experiment: Experiment) -> SearchOptions:
    """Return the options of its search; those of any method where this release has not its own."""
    config = experiment.submission.config if experiment.submission is not None else {}
    try:
        return read_options(config.get("searcher") or {}, timed=False)
    except InvalidConfig:
        return _ANY


def going_on(options: SearchOptions, plan: BracketPlan, rung: int, results: int) -> float:
    """Return how many trials are expected to train on after the first results of a rung.

    Such sums are kept: those of ten thousand results are asked for again and again, with few more.
    """
    key = msgspec.msgpack.encode((options, plan, rung))
    with _sums_lock:
        sums = _sums.setdefault(key, array("d", [0.0]))
        _sums.move_to_end(key)
        if len(_sums) > _SUMS_MAX:
            _sums.popitem(last=False)
        for result in range(len(sums), results + 1):
            sums.append(sums[-1] + options.going_on(plan, rung, result))
        return sums[results]


def rung_of(trial: Trial, lengths: list[int]) -> int | None:
    """Return the highest rung whose length a trial has reached, None before the first."""
    reached = sum(1 for length in lengths if trial.time >= length)
    return reached - 1 if reached else None


def _full(experiment: Experiment) -> float | None:
    if not experiment.plan or not all(plan.lengths for plan in experiment.plan):
        return None
    created = [experiment.tally.bracket(plan.bracket).trials for plan in experiment.plan]
    created[0] += experiment.tally.trials - sum(created)
    pairs = zip(experiment.plan, created, strict=True)
    if experiment.ended is not None:
        return float(sum(plan.lengths[-1] * count for plan, count in pairs))
    return float(sum(plan.lengths[-1] * max(plan.trials, count) for plan, count in pairs))


def _fraction(experiment: Experiment) -> float:
    if not experiment.plan:
        return 0.0
    options = options_of(experiment)
    done = whole = 0.0
    for plan in experiment.plan:
        bracket = experiment.tally.bracket(plan.bracket)
        count = max(plan.trials, bracket.trials)
        closed = _ratio(bracket.closed, count)
        if not plan.lengths:
            done, whole = done + closed * count, whole + count
            continue
        if experiment.ended is not None:  # its end has closed the trials that were left
            closed = 0.0
        expected = _expected(plan, options)
        trained = sum(min(bracket.units(at), units) for at, units in enumerate(expected))
        created = _ratio(bracket.trials, count)
        done += sum(expected) * min(max(_ratio(trained, sum(expected)), closed), created)
        whole += sum(expected)
    return _ratio(done, whole)


def _expected(plan: BracketPlan, options: SearchOptions) -> list[float]:
    """Return the units that are expected on each stretch between two rungs."""
    found = []
    before, trials = 0, float(plan.trials)
    for rung, length in enumerate(plan.lengths):
        if rung:
            trials = max(going_on(options, plan, rung - 1, round(trials)), 1.0)
        found.append(trials * (length - before))
        before = length
    return found


def _ratio(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 0 else 0.0
