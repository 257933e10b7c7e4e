"""What is left of an experiment: its open runs, and the trials that its method will still train.

How many trials go on from a rung is what the method expects (`SearchOptions.going_on`), corrected
by how many did so far.
"""

from collections import Counter
from functools import partial
from typing import Any, Final

from rung.config.sections.resources import PRIORITY
from rung.events.experiment import BracketPlan
from rung.gateway.estimate.forecast import Bracket, Run, Search
from rung.gateway.projections.experiment import Experiment, Trial, resources_of
from rung.gateway.projections.tally import BracketTally, at
from rung.gateway.serializers.progress import going_on, options_of
from rung.methods.method import SearchOptions

_EVIDENCE: Final = 3.0
"""So many trials that went on as expected are assumed beside those that were seen."""
_OVERDUE: Final = 0.1
"""What has taken longer than it should takes this part of that longer."""
_UNLIMITED: Final = 1_000_000


def remaining(
    experiment: Experiment,
    now: float,
    *,
    start_s: float | None = None,
    run_s: float | None = None,
) -> Search | None:
    """Return what is left of an experiment, None if that is unknown.

    Args:
        experiment: an active one, with its tally and the trials that have an open run.
        now: Unix time in seconds.
        start_s: how long runs are taken to start where reports do not tell.
        run_s: how long its runs in full are taken to be, as long as there are no reports.
    """
    options = options_of(experiment)
    if not experiment.plan:
        return None
    lasting = _Lasting.of(experiment, start_s, run_s)
    if lasting is None:
        return None
    config = experiment.submission.config if experiment.submission is not None else {}
    resources = resources_of(experiment, config)
    slots = _whole(resources.get("slots_per_trial"), 1)
    place = {plan.bracket: number for number, plan in enumerate(experiment.plan)}
    opened = [trial for trial in experiment.trials if trial.run > trial.over]
    listed = Counter(trial.bracket for trial in opened)
    concurrent = options.concurrent or _UNLIMITED
    most = _whole(resources.get("max_slots"), 0)
    if most and slots:
        concurrent = max(min(concurrent, most // slots), 1)
    lengths = [plan.lengths or [1] for plan in experiment.plan]
    return Search(
        priority=_whole(resources.get("priority"), PRIORITY),
        slots=slots,
        concurrent=concurrent,
        start_s=lasting.start_s,
        unit_s=lasting.unit_s,
        leave_s=lasting.leave_s,
        stop_s=lasting.leave_s + _overrun(experiment) * lasting.unit_s,
        brackets=[
            _bracket(
                plan,
                experiment.tally.bracket(plan.bracket),
                options,
                most,
                listed[plan.bracket],
            )
            for plan, most in zip(
                experiment.plan, options.concurrent_in(len(experiment.plan)), strict=True
            )
        ],
        runs=[
            _run(trial, number, lengths[number], lasting, now)
            for trial in opened
            if (number := place.get(trial.bracket)) is not None
        ],
    )


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default


class _Lasting:
    """How long the parts of a run take."""

    def __init__(self, start_s: float, unit_s: float, leave_s: float, *, timed: bool) -> None:
        self.start_s, self.unit_s, self.leave_s, self.timed = start_s, unit_s, leave_s, timed

    @classmethod
    def of(
        cls, experiment: Experiment, start_s: float | None, run_s: float | None
    ) -> "_Lasting | None":
        """Return what the reports so far show; if nothing, what follows from `run_s`."""
        throughput = experiment.throughput
        if not all(plan.lengths for plan in experiment.plan):
            whole = throughput.run_s.value or run_s
            return None if whole is None else cls(0.0, whole, 0.0, timed=False)
        parts = throughput.parts(start_s)
        if parts is None and run_s is not None:
            parts = 0.0, run_s / max(plan.lengths[-1] for plan in experiment.plan)
        if parts is None:
            return None
        return cls(*parts, throughput.seconds_to_leave(), timed=True)


def _bracket(
    plan: BracketPlan,
    tally: BracketTally,
    options: SearchOptions,
    concurrent: int,
    listed: int,
) -> Bracket:
    """Return what is left of a bracket; open runs that are not listed are those to come."""
    lengths: list[int] = plan.lengths or [1]
    rests = len(lengths) > 1 and not options.rungs()
    last = len(lengths) - 1
    reached = [at(tally.passed, rung) for rung in range(len(lengths))]
    due, factors = [0.0] * last, [1.0] * last
    for rung in range(last):
        expected = going_on(options, plan, rung, reached[rung])
        went_on = at(tally.went_on, rung)
        factors[rung] = (went_on + _EVIDENCE) / (expected + _EVIDENCE)
        due[rung] = max(expected - went_on, 0.0)
    return Bracket(
        lengths=lengths,
        rests=rests,
        to_come=max(plan.trials - tally.trials, 0) + max(tally.open - listed, 0),
        results=reached,
        due=due,
        going_on=partial(_going_on, options, plan, factors),
        concurrent=concurrent,
    )


def _overrun(experiment: Experiment) -> float:
    """Return how many units trials train on average after the rung at which they are stopped."""
    brackets = experiment.tally.brackets.values()
    stopped = sum(each.stopped for each in brackets)
    return sum(each.overrun_units for each in brackets) / stopped if stopped else 0.0


def _going_on(
    options: SearchOptions, plan: BracketPlan, factors: list[float], rung: int, result: int
) -> float:
    return options.going_on(plan, rung, result) * factors[rung]


def _run(trial: Trial, bracket: int, lengths: list[int], lasting: _Lasting, now: float) -> Run:
    """Return an open run: how long it still takes to its next rung."""
    timing = trial.timing
    holds = trial.started >= trial.run
    rung = last = len(lengths) - 1
    since, unit_s = timing.started, lasting.unit_s
    if not lasting.timed:
        needed = unit_s
    elif trial.stopped is not None:
        needed, rung = 0.0, last
    else:
        rung = next((k for k, length in enumerate(lengths) if length > trial.time), last)
        own = timing.seconds / timing.units if timing.units else 0.0
        unit_s = (own * timing.reports + unit_s) / (timing.reports + 1)
        needed = max(lengths[rung] - trial.time, 0.0) * unit_s
        if holds and timing.reported:
            since = timing.reported
        else:
            needed += lasting.start_s
    passed = max(now - since, 0.0) if holds and since else 0.0
    left = max(needed - passed, _OVERDUE * needed)
    return Run(bracket, rung, left, unit_s, holds=holds, requested=timing.requested)
