"""The life of one trial: how its reports and the ends of its runs are read.

Only the current run of a trial counts; what another one says is ignored, and so is what a trial
reports after it was given up. How a run ended is read as in `docs/ARCHITECTURE.md`; in the order
in which the questions are asked here:

1. The trial was given up: it is closed as stopped, however the run ended.
2. The experiment is being canceled or killed: it is closed as canceled.
3. The script refused its hyperparameters: closed as errored; the method may replace it.
4. The run had gone past its length and was withdrawn: it counts as trained.
5. It was lost, or dropped while waiting, or killed, or failed for a fault of the machine (a full
   disk): a new run, which counts as no restart.
6. It failed: a new run from the newest checkpoint; after more than `max_restarts`, or with one
   fault at one step three times in a row, errored: what repeats itself so is no bad luck. At once
   errored where its code was refused, which is the same bytes for every run.
7. It acknowledged a preemption: a new run once there may be one. (Had it reached its length, that
   run finds nothing left to do and is over at once.)
8. It reached its length: trained. The method has the trial rest; at the last rung it is completed.
9. It was withdrawn: a new run once there may be one.
10. It ended by itself before its length, or has none: completed.

A new run is noted in `Experiment.due` and a trial to be closed in `Experiment.closing`;
`follow_up` makes decisions of both.
"""

import math
from typing import Final, Literal, NamedTuple

from rung.events.checkpoint import CheckpointDamaged, CheckpointStored
from rung.events.trial import CODE_REFUSED, ExitOutcome, TrialValidated
from rung.searcher.methods.actions import Leaving
from rung.searcher.state import Experiment, Fate, Phase
from rung.searcher.trial import Trial, cost_of

Outcome = ExitOutcome | Literal["lost", "dropped"]

REPEATS_MAX: Final = 3
"""How often a fault may repeat itself at one step before the trial is given up."""


class End(NamedTuple):
    """What is said of the end of a run."""

    outcome: Outcome
    message: str
    fault: str = ""
    steps: int | None = None
    machine: bool = False
    """Whether a failure is the machine's."""


def report(experiment: Experiment, event: TrialValidated) -> None:
    """Fold a validation."""
    trial = experiment.current(event.trial_id, event.run)
    if trial is None or trial.stopped is not None:
        return
    search = experiment.settings.search
    time, timed = _time_of(event, search.time_metric)
    cost = cost_of(event.metrics.get(search.metric), smaller_is_better=search.smaller_is_better)
    first = len(trial.results)
    lengths = experiment.lengths(trial)
    if trial.report(event.steps_completed, time, cost, lengths, timed=timed):
        experiment.method.reported(trial, first)


def _time_of(event: TrialValidated, time_metric: str) -> tuple[float, bool]:
    """Return a report's time, and whether it is in units of the time metric for certain."""
    time = event.metrics.get(time_metric)
    if time is not None and not isinstance(time, str) and math.isfinite(time):
        return float(time), True
    return float(event.steps_completed), time_metric == "batches"


def store(experiment: Experiment, event: CheckpointStored) -> None:
    """Fold that a checkpoint is complete."""
    trial = experiment.current(event.trial_id, event.run)
    if trial is not None:
        trial.store(event.steps_completed, event.checkpoint_id)


def damage(experiment: Experiment, event: CheckpointDamaged) -> None:
    """Fold that a checkpoint cannot be restored; true whichever run found it."""
    trial = experiment.trial(event.trial_id)
    if trial is not None:
        trial.damage(event.checkpoint_id)


def end_run(experiment: Experiment, phase: Phase, trial_id: str, run: int, end: End) -> None:
    """Fold the end of a run."""
    trial = experiment.current(trial_id, run)
    if trial is None:
        return
    withdrawn, trial.running, trial.withdrawn = trial.withdrawn, False, None
    if trial.stopped is not None:
        _leave(experiment, trial, "stopped", Fate("stopped", trial.stopped))
    elif phase in {"canceling", "killing"}:
        experiment.training -= 1
        experiment.closing[trial.index] = Fate("canceled", "the experiment was canceled")
    elif end.outcome == "invalid_hp":
        fate = Fate("errored", f"the script refused its hyperparameters: {end.message}")
        _leave(experiment, trial, "invalid_hp", fate)
    else:
        _go_on(experiment, trial, end, withdrawn=withdrawn is not None)


def _go_on(experiment: Experiment, trial: Trial, end: End, *, withdrawn: bool) -> None:
    """Fold the end of a run of a trial that nobody wants to end (questions 4 to 10)."""
    outcome, message = end.outcome, end.message
    if trial.delivered or (withdrawn and trial.overrun and experiment.compares):
        _trained(experiment, trial)
    elif outcome in {"lost", "dropped", "killed"}:
        experiment.due[trial.index] = f"the run before was {outcome}: {message}"
    elif outcome == "failed" and end.machine:
        experiment.due[trial.index] = f"the machine failed the run before: {message}"
    elif outcome == "failed":
        _fail(experiment, trial, end)
    elif outcome == "preempted":
        experiment.due[trial.index] = "the run before was preempted"
    elif trial.reached:
        _trained(experiment, trial)
    elif withdrawn:
        experiment.due[trial.index] = "the run before was withdrawn"
    else:
        _leave(experiment, trial, "ended", Fate("completed", _ended(trial)))


def _ended(trial: Trial) -> str:
    if trial.length is None:
        return "the script ended"
    return f"the script ended by itself at {max(trial.time, 0):g} of {trial.length}"


def _fail(experiment: Experiment, trial: Trial, end: End) -> None:
    message = end.message
    trial.fail(end.fault, end.steps)
    most = experiment.settings.max_restarts
    if end.fault == CODE_REFUSED:
        _leave(experiment, trial, "errored", Fate("errored", f"not tried again: {message}"))
    elif trial.restarts > most:
        times = "once" if trial.restarts == 1 else f"{trial.restarts} times"
        text = f"failed {times}; max_restarts is {most}: {message}"
        _leave(experiment, trial, "errored", Fate("errored", text))
    elif trial.repeats >= REPEATS_MAX:
        where = "before its first step" if end.steps is None else f"at step {end.steps}"
        text = f"failed {trial.repeats} times in the same way {where}, so it is not tried again"
        _leave(experiment, trial, "errored", Fate("errored", f"{text}: {message}"))
    else:
        experiment.due[trial.index] = f"restart {trial.restarts} of {most} after: {message}"


def _trained(experiment: Experiment, trial: Trial) -> None:
    experiment.training -= 1
    experiment.method.trained(trial)
    lengths = experiment.lengths(trial)
    if trial.length is None or not lengths or trial.length >= lengths[-1]:
        experiment.closing[trial.index] = Fate("completed", f"trained to {trial.length}")


def _leave(experiment: Experiment, trial: Trial, why: Leaving, fate: Fate) -> None:
    experiment.training -= 1
    experiment.method.left(trial, why)
    experiment.closing[trial.index] = fate


def interrupt(experiment: Experiment) -> None:
    """Fold that the experiment is to end early: trials without a run can be closed at once."""
    experiment.due.clear()
    for trial in experiment.trials:
        if not (trial.closed or trial.running or trial.index in experiment.closing):
            experiment.closing[trial.index] = Fate("canceled", "the experiment was canceled")
