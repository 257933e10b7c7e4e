"""The searcher: all transitions and decisions of an experiment and its trials.

Theory of operation
===================

An experiment is *new* until it is submitted, then *active* or *paused*, and *ended* at last, by
way of *canceling* or *killing* where a user asked for that. A trial is in one of these states:

    due        needs a run, which is not requested while the experiment is paused
    running    its current run was requested and has not ended; maybe it was withdrawn
    resting    trained to its length, short of the last rung; the method may continue or stop it
    closing    its runs are over; closed with the next decision
    closed     never trains again

Due and running trials *train*: they count against `max_concurrent_trials`, paused or not.

* `evolve` folds. A fact brings results into the method, and the end of a run into what is due or
  to be closed. A decision makes a trial exist, run, be withdrawn, continued, stopped or closed,
  releases a checkpoint, or pauses, resumes or ends the experiment. Recorded decisions are never
  judged again.
* `decide` reads the state and returns what follows: it closes, stops, requests runs, fills free
  room with the method's moves (trials that continue, new trials), and ends the experiment with
  its last trial. Except for requests of users, nothing depends on which fact came last. Several
  decisions of one fact are made on local counts, because the state has them only afterwards.

The method (`rung.methods`) sees trials, results and ends, but no pauses, restarts and
cancellations, and answers with actions: create, continue, stop.

How the end of a run is read
----------------------------

Only the current run of a trial counts; what another one reports is ignored, and so is what a
trial reports after it was stopped. The questions, in the order in which they are asked:

1. The trial was stopped: it is closed as stopped, however the run ended.
2. The experiment is being canceled or killed: it is closed as canceled.
3. The script refused its hyperparameters: closed as errored; the method may replace it.
4. The run had gone past its length and was withdrawn: it counts as trained.
5. It was lost, or dropped while waiting, or killed, or failed for a fault of the machine (a full
   disk): a new run, which counts as no restart.
6. It failed: a new run from the newest checkpoint; after more than `max_restarts`, or with one
   fault at one step three times in a row, errored: a fault that repeats itself is no accident. At
   once errored where its code was refused, which is the same bytes for every run.
7. It acknowledged a preemption: a new run once there may be one. (Had it reached its length, that
   run has nothing left to do and is over at once.)
8. It reached its length: trained. The method has the trial rest; at the last rung it is completed.
9. It was withdrawn: a new run once there may be one.
10. It ended by itself before its length, or has none: completed.

Checkpoints of others
---------------------

Where the method's trials start from the checkpoints of others (`SearchOptions.SHARES`), each
checkpoint is *held* from the moment at which it is stored: checkpoint-gc, which knows the method
from the configuration, retires none of them. The searcher releases a checkpoint
(`checkpoint.released`, which a relay brings to checkpoint-gc) as soon as no open trial would
restore it and the method does not hold it (`Method.holds`); at the end of the experiment, all. A
released checkpoint is forgotten here, and no run starts from it any more. So no order in which
events travel lets a checkpoint be deleted that a run is to start from. A checkpoint that was
stored after its run had ended is known to neither side and never held.

A trial that takes another's weights has no checkpoint of its own until it stores the next, and its
times are counted anew: the donor's may be older than the trial's last report.

Invariants
----------

* exactly one run of a trial is current, and a new one is requested only after its end;
* a trial is closed once, after its last run has ended, and every trial is;
* no more trials train than `max_concurrent_trials`, and no trial is created while paused;
* a rung counts a trial once, whatever was restarted, repeated or lost;
* where checkpoints are held, no run starts from one that was released.

Not handled: time-outs (the agent and the scheduler report a run that never ends as lost); slots (a
run is requested whether or not there is room).
"""

import math
from typing import Any, Final, Literal, NamedTuple, TypeGuard, assert_never, get_args

from rung.events import Payload
from rung.events import topic as topics
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.checkpoint import CheckpointDamaged, CheckpointReleased, CheckpointStored
from rung.events.experiment import (
    CancelRequested,
    ExperimentEnded,
    ExperimentPaused,
    ExperimentResumed,
    ExperimentState,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    ResumeRequested,
    SearchPlanned,
)
from rung.events.installation import LEVEL
from rung.events.trial import (
    CODE_REFUSED,
    ExitOutcome,
    MetricValue,
    RunRequested,
    RunSpec,
    RunWithdrawn,
    TrialClosed,
    TrialExited,
    TrialPromoted,
    TrialRequested,
    TrialStopped,
    TrialValidated,
    Withdrawal,
    trial_id_of,
)
from rung.methods.method import WORST, Chance, Continue, Create, Leaving, Start
from rung.methods.rng import trial_seed
from rung.searcher.state import (
    CHECKPOINTS_KEPT,
    Experiment,
    Fate,
    Held,
    Phase,
    Saved,
    State,
    Trial,
    read_settings,
)

Fact = (
    PauseRequested
    | ResumeRequested
    | CancelRequested
    | KillRequested
    | TrialValidated
    | TrialExited
    | AllocationLost
    | AllocationDropped
    | CheckpointStored
    | CheckpointDamaged
)
"""The facts that the searcher folds, beside the submission."""
Decision = (
    SearchPlanned
    | ExperimentPaused
    | ExperimentResumed
    | ExperimentEnded
    | TrialRequested
    | RunRequested
    | RunWithdrawn
    | TrialPromoted
    | TrialStopped
    | TrialClosed
    | CheckpointReleased
)
_FACTS: Final = frozenset(get_args(Fact))
_DECISIONS: Final = frozenset(get_args(Decision))

REPEATS_MAX: Final = 3
"""How often the same fault may come at one step before the trial is given up."""

Outcome = ExitOutcome | Literal["lost", "dropped"]

Handles = ExperimentSubmitted | Fact | Decision


class Searcher:
    """The processor of the topic `experiments`; see `rung.runtime.Processor`."""

    name = "searcher"
    facts = topics.EXPERIMENTS
    decisions = topics.SEARCHES
    handles = Handles
    level = LEVEL
    version = 3
    state_type = State

    def initial(self, key: str) -> State:
        """Return the state of an experiment of which nothing is known."""
        return State(experiment_id=key)

    def evolve(self, state: State, event: Handles) -> None:
        """Fold a fact or a decision."""
        if isinstance(event, ExperimentSubmitted):
            _submit(state, event)
        elif state.experiment is None:
            pass
        elif _is_fact(event):
            _learn(state, state.experiment, event)
        elif _is_decision(event):
            _carry_out(state, state.experiment, event)

    def decide(self, state: State, fact: ExperimentSubmitted | Fact) -> list[Payload]:
        """Return what follows from a fact."""
        if state.experiment is None:
            return []
        return _decide(state, state.experiment, fact)

    def ended(self, state: State) -> bool:
        """Return whether the experiment is over."""
        return state.phase == "ended"


def _is_fact(event: Payload) -> TypeGuard[Fact]:
    return type(event) in _FACTS


def _is_decision(event: Payload) -> TypeGuard[Decision]:
    return type(event) in _DECISIONS


def cost_of(value: MetricValue | None, *, smaller_is_better: bool) -> float:
    """Return a metric as a cost, the lower the better; what is no finite number is the worst."""
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return WORST
    return float(value) if smaller_is_better else -float(value)


# Facts


def _submit(state: State, event: ExperimentSubmitted) -> None:
    if state.phase != "new":
        return
    settings = read_settings(event.config)
    config: dict[str, Any] = {}
    if event.config_digest is None:
        config = {name: it for name, it in event.config.items() if name != "hyperparameters"}
    method = settings.search.plan(settings.space)
    state.phase, state.level = "active", event.level
    state.experiment = Experiment(
        settings,
        config,
        event.code_digest,
        method,
        submission=event.submission,
        config_digest=event.config_digest,
    )


def _learn(state: State, experiment: Experiment, event: Fact) -> None:
    """Fold a fact."""
    match event:
        case TrialValidated():
            _validate(experiment, event)
        case TrialExited():
            message = event.message or event.outcome
            end = End(
                event.outcome, message, event.fault, event.steps_completed, machine=event.machine
            )
            _end_run(experiment, state.phase, event.trial_id, event.run, end)
        case AllocationLost() | AllocationDropped():
            end = End("lost" if isinstance(event, AllocationLost) else "dropped", event.reason)
            _end_run(experiment, state.phase, event.trial_id, event.run, end)
        case CheckpointStored():
            _store(experiment, event)
        case CheckpointDamaged():
            _damage(experiment, event)
        case CancelRequested():
            if state.phase != "killing":
                state.phase = "canceling"
            _interrupt(experiment)
        case KillRequested():
            state.phase = "killing"
            _interrupt(experiment)
        case PauseRequested() | ResumeRequested():
            pass  # the decisions that answer them count
        case _:
            assert_never(event)


def _validate(experiment: Experiment, event: TrialValidated) -> None:
    trial = experiment.current(event.trial_id, event.run)
    if trial is None or trial.stopped is not None:
        return
    search = experiment.settings.search
    time, timed = _time_of(event, search.time_metric)
    cost = cost_of(event.metrics.get(search.metric), smaller_is_better=search.smaller_is_better)
    first = len(trial.results)
    lengths = experiment.lengths(trial)
    if report(trial, event.steps_completed, time, cost, lengths, timed=timed):
        experiment.method.reported(trial, first)


def _time_of(event: TrialValidated, time_metric: str) -> tuple[float, bool]:
    """Return a report's time, and whether it is in units of the time metric for certain."""
    time = event.metrics.get(time_metric)
    if time is not None and not isinstance(time, str) and math.isfinite(time):
        return float(time), True
    return float(event.steps_completed), time_metric == "batches"


def report(  # noqa: PLR0913 - what a report says
    trial: Trial, steps: int, time: float, cost: float, lengths: list[int], *, timed: bool
) -> bool:
    """Fold a report; return whether it was new.

    What a restarted run reports again counts once.

    Args:
        trial: that reports.
        steps: batches completed.
        time: in units of the time metric.
        cost: of the searcher's metric, the lower the better.
        lengths: of the rungs of the trial's bracket.
        timed: the script itself gave the time, so that an overrun is certain.
    """
    if time <= trial.time:
        return False
    if timed and trial.reached:
        trial.overrun += 1
    trial.time, trial.cost = time, cost
    if trial.due_steps is None and trial.reached:
        trial.due_steps = steps
    while len(trial.results) < len(lengths) and time >= lengths[len(trial.results)]:
        trial.results.append(cost)
    return True


def _store(experiment: Experiment, event: CheckpointStored) -> None:
    trial = experiment.current(event.trial_id, event.run)
    if trial is not None:
        store(trial, event.steps_completed, event.checkpoint_id)
        if experiment.shares:
            experiment.held[event.checkpoint_id] = Held(trial.index)


def store(trial: Trial, steps: int, checkpoint_id: str) -> None:
    """Fold that a checkpoint is complete; of two at one step the later is the newer."""
    place = 0
    while place < len(trial.checkpoints) and trial.checkpoints[place].steps > steps:
        place += 1
    trial.checkpoints.insert(place, Saved(steps, checkpoint_id))
    del trial.checkpoints[CHECKPOINTS_KEPT:]


def _damage(experiment: Experiment, event: CheckpointDamaged) -> None:
    """Fold that a checkpoint cannot be restored, whichever run found it."""
    found = experiment.trial(event.trial_id)
    held = experiment.held.get(event.checkpoint_id)
    if held is not None:
        held.damaged = True
        for trial in experiment.trials:  # any of them may have started from it
            forget(trial, event.checkpoint_id)
    elif found is not None:
        forget(found, event.checkpoint_id)


def forget(trial: Trial, checkpoint_id: str) -> None:
    """Fold that a trial cannot restore a checkpoint any more."""
    trial.checkpoints = [kept for kept in trial.checkpoints if kept.checkpoint_id != checkpoint_id]
    if checkpoint_id in trial.source:
        trial.source = [kept for kept in trial.source if kept != checkpoint_id]


class End(NamedTuple):
    """How a run ended."""

    outcome: Outcome
    message: str
    fault: str = ""
    steps: int | None = None
    machine: bool = False
    """Whether a failure is the machine's."""


def _end_run(experiment: Experiment, phase: Phase, trial_id: str, run: int, end: End) -> None:
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
    """Fold the end of a run of a trial that may go on (questions 4 to 10)."""
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
    _count_failure(trial, end.fault, end.steps)
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


def _count_failure(trial: Trial, fault: str, steps: int | None) -> None:
    trial.restarts += 1
    same = fault and (fault, steps) == (trial.fault, trial.fault_steps)
    trial.repeats = trial.repeats + 1 if same else min(len(fault), 1)
    trial.fault, trial.fault_steps = fault, steps


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


def _interrupt(experiment: Experiment) -> None:
    """Fold that the experiment is to end early: trials without a run can be closed at once."""
    experiment.due.clear()
    for trial in experiment.trials:
        if not (trial.closed or trial.running or trial.index in experiment.closing):
            experiment.closing[trial.index] = Fate("canceled", "the experiment was canceled")


# Decisions, from the moment at which they are on record


def _carry_out(  # noqa: C901 - one case per decision
    state: State, experiment: Experiment, event: Decision
) -> None:
    """Fold a decision."""
    match event:
        case SearchPlanned():
            experiment.plan = event.brackets
        case ExperimentPaused():
            state.phase = "paused"
        case ExperimentResumed():
            state.phase = "active"
        case ExperimentEnded():
            state.phase, state.experiment = "ended", None
        case TrialRequested():
            _create(experiment, event)
        case RunRequested():
            _request(experiment, event)
        case RunWithdrawn():
            _known(experiment, event.trial_id).withdrawn = event.how
        case TrialPromoted():
            _continue(experiment, event)
        case TrialStopped():
            trial = _known(experiment, event.trial_id)
            trial.stopped = event.reason
            experiment.method.stopped(trial)
        case TrialClosed():
            _close(experiment, event)
        case CheckpointReleased():
            held = experiment.held.pop(event.checkpoint_id)
            forget(experiment.trials[held.trial], event.checkpoint_id)
        case _:
            assert_never(event)


def _known(experiment: Experiment, trial_id: str) -> Trial:
    trial = experiment.trial(trial_id)
    assert trial is not None, trial_id
    return trial


def _create(experiment: Experiment, event: TrialRequested) -> None:
    assert event.index == len(experiment.trials), event
    trial = Trial(
        index=event.index,
        bracket=event.bracket,
        hparams=event.hparams,
        seed=event.seed,
        source=event.restore,
    )
    experiment.trials.append(trial)
    experiment.training += 1
    experiment.living += 1
    experiment.method.created(trial)


def _continue(experiment: Experiment, event: TrialPromoted) -> None:
    trial = _known(experiment, event.trial_id)
    trial.rung = event.rung
    if event.hparams is not None:
        trial.hparams = event.hparams
    if event.restore:
        trial.source, trial.checkpoints, trial.time = event.restore, [], -1.0
    experiment.training += 1
    experiment.method.continued(trial)


def _request(experiment: Experiment, event: RunRequested) -> None:
    spec = event.spec
    trial = _known(experiment, spec.trial_id)
    assert not trial.running, event
    assert spec.run == trial.run + 1, event
    if spec.length != trial.length:
        trial.length, trial.overrun, trial.due_steps = spec.length, 0, None
    trial.run, trial.running, trial.withdrawn = spec.run, True, None
    experiment.due.pop(trial.index, None)


def _close(experiment: Experiment, event: TrialClosed) -> None:
    trial = _known(experiment, event.trial_id)
    assert not trial.running, event
    close(trial)
    experiment.living -= 1
    experiment.tally[event.state] = experiment.tally.get(event.state, 0) + 1
    experiment.closing.pop(trial.index, None)


def close(trial: Trial) -> None:
    """Fold a trial's end; drop what only a living trial needs."""
    trial.closed, trial.running = True, False
    trial.hparams, trial.results, trial.checkpoints, trial.source = {}, [], [], []


# What follows from a fact


def _decide(
    state: State, experiment: Experiment, fact: Fact | ExperimentSubmitted
) -> list[Payload]:
    """Return what follows; from facts that are not named here, nothing does."""
    if isinstance(fact, TrialValidated):  # by far the most: asked first
        follow_up = _FollowUp(state.experiment_id, experiment, state.phase)
        trial = experiment.current(fact.trial_id, fact.run)
        if trial is not None:
            follow_up.limit(trial)
        return follow_up.conclude()
    phase = _phase_after(state, fact)
    follow_up = _FollowUp(state.experiment_id, experiment, phase)
    match fact:
        case ExperimentSubmitted() if not experiment.plan:
            follow_up.plan()
        case PauseRequested() if phase != state.phase:
            follow_up.decisions.append(ExperimentPaused(experiment_id=state.experiment_id))
            follow_up.withdraw("preempt", "paused")
        case ResumeRequested() if phase != state.phase:
            follow_up.decisions.append(ExperimentResumed(experiment_id=state.experiment_id))
        case CancelRequested() if phase == "canceling":
            follow_up.withdraw("preempt", "the experiment was canceled")
        case KillRequested():
            follow_up.withdraw("kill", "the experiment was killed")
        case TrialExited() | AllocationLost() | AllocationDropped():
            pass
        case CheckpointStored() | CheckpointDamaged():
            follow_up.release()
            return follow_up.decisions
        case _:
            return []
    return follow_up.conclude()


def _phase_after(state: State, fact: Handles) -> Phase:
    """Return the phase that the experiment will be in after the decisions of this fact."""
    if isinstance(fact, PauseRequested) and state.phase == "active":
        return "paused"
    if isinstance(fact, ResumeRequested) and state.phase == "paused":
        return "active"
    return state.phase


class _FollowUp:
    """Collects the decisions on one fact, in one phase of an experiment."""

    def __init__(self, experiment_id: str, experiment: Experiment, phase: Phase) -> None:
        self._id = experiment_id
        self._experiment = experiment
        self._phase = phase
        self._tally = experiment.tally
        self._living = experiment.living
        self._created = len(experiment.trials)
        self._starts: list[str] = []
        self.decisions: list[Payload] = []

    def plan(self) -> None:
        """Announce the search's brackets."""
        settings = self._experiment.settings
        self.decisions.append(
            SearchPlanned(
                experiment_id=self._id,
                method=settings.method,
                time_metric=settings.search.time_metric,
                brackets=self._experiment.method.brackets(),
            )
        )

    def withdraw(self, how: Withdrawal, reason: str) -> None:
        """Withdraw every run, also to kill one that was asked to preempt."""
        for trial in self._experiment.trials:
            if trial.running and trial.withdrawn not in {how, "kill"}:
                self._withdraw(trial, how, reason)

    def conclude(self) -> list[Payload]:
        """Add all that follows; return all decisions."""
        for index, fate in self._experiment.closing.items():
            self._close(self._experiment.trials[index], fate)
        if self._phase in {"active", "paused"}:
            self._stop()
        if self._phase == "active":
            self._run()
            self._move()
        ends = not self._living and not self._wanted()
        self.release(everything=ends)
        if ends:
            self._end()
        return self.decisions

    def release(self, *, everything: bool = False) -> None:
        """Release the checkpoints that no run starts from any more.

        Trials that are closed with this fact keep theirs until the next.
        """
        experiment = self._experiment
        if not experiment.held:
            return
        wanted: set[str] = set()
        if not everything:
            wanted.update(self._starts, experiment.method.holds())
            for trial in experiment.trials:
                wanted.update(trial.restore)
        self.decisions += [
            CheckpointReleased(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, held.trial),
                checkpoint_id=checkpoint_id,
            )
            for checkpoint_id, held in experiment.held.items()
            if checkpoint_id not in wanted
        ]

    def limit(self, trial: Trial) -> None:
        """Withdraw a run that trains on past its length."""
        overrun = trial.overrun and self._experiment.compares
        if overrun and trial.running and trial.withdrawn is None:
            reason = f"reached its length {trial.length} and trains on"
            self._withdraw(trial, "preempt", reason)

    def _wanted(self) -> bool:
        """Return whether a paused experiment has trials to come."""
        return self._phase == "paused" and bool(self._experiment.method.moves(self._chance(), 1))

    def _chance(self) -> Chance:
        settings = self._experiment.settings
        return Chance(settings.space, settings.seed, self._created)

    def _close(self, trial: Trial, fate: Fate) -> None:
        self._living -= 1
        self._tally = {**self._tally, fate.state: self._tally.get(fate.state, 0) + 1}
        self.decisions.append(
            TrialClosed(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, trial.index),
                state=fate.state,
                reason=fate.reason,
                restarts=trial.restarts,
            )
        )

    def _stop(self) -> None:
        for stop in self._experiment.method.stops():
            trial = self._experiment.trials[stop.index]
            if trial.closed:
                continue  # closed on record, by a version that decided otherwise
            self.decisions.append(
                TrialStopped(
                    experiment_id=self._id,
                    trial_id=trial_id_of(self._id, stop.index),
                    rung=stop.rung,
                    reason=stop.reason,
                )
            )
            if not trial.running:
                self._close(trial, Fate("stopped", stop.reason))
            elif trial.withdrawn is None:
                self._withdraw(trial, "preempt", f"stopped: {stop.reason}")

    def _withdraw(self, trial: Trial, how: Withdrawal, reason: str) -> None:
        self.decisions.append(
            RunWithdrawn(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, trial.index),
                run=trial.run,
                pool=self._experiment.settings.pool,
                how=how,
                reason=reason,
            )
        )

    def _run(self) -> None:
        for index, reason in self._experiment.due.items():
            trial = self._experiment.trials[index]
            self._request(trial, trial.length, reason)

    def _move(self) -> None:
        for move in self._experiment.method.moves(self._chance(), self._experiment.free):
            match move:
                case Create():
                    self._create(move)
                case Continue():
                    self._continue(move)
                case _:
                    assert_never(move)

    def _create(self, move: Create) -> None:
        index = self._created
        seed = trial_seed(self._experiment.settings.seed, index)
        parent, restore = self._start(move.start)
        self._created += 1
        self._living += 1
        self.decisions.append(
            TrialRequested(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, index),
                index=index,
                bracket=move.bracket,
                hparams=move.hparams,
                seed=seed,
                parent=parent,
                restore=restore,
            )
        )
        trial = Trial(index, move.bracket, move.hparams, seed, source=restore)
        self._request(trial, move.length, "first run")

    def _continue(self, move: Continue) -> None:
        trial = self._experiment.trials[move.index]
        parent, restore = self._start(move.start)
        self.decisions.append(
            TrialPromoted(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, move.index),
                rung=move.rung,
                length=move.length,
                reason=move.reason,
                hparams=move.hparams,
                parent=parent,
                restore=restore,
            )
        )
        reason = f"promoted to rung {move.rung}"
        if parent is not None:
            reason += f" with the weights of {parent}"
        trial = Trial(
            trial.index,
            trial.bracket,
            trial.hparams if move.hparams is None else move.hparams,
            trial.seed,
            run=trial.run,
            source=restore or trial.restore,
        )
        self._request(trial, move.length, reason)

    def _start(self, start: Start | None) -> tuple[str | None, list[str]]:
        """Return the trial whose weights are taken, and its undamaged checkpoints."""
        if start is None:
            return None, []
        assert self._experiment.shares, "the method does not declare that trials share checkpoints"
        held = self._experiment.held
        released = [name for name in start.checkpoints if name not in held]
        assert not released, f"released, so that they may be gone: {released}"
        usable = [name for name in start.checkpoints if not held[name].damaged]
        if not usable:
            return None, []
        self._starts += usable
        return trial_id_of(self._id, start.donor), usable

    def _request(self, trial: Trial, length: int | None, reason: str) -> None:
        settings = self._experiment.settings
        source = settings.search.source_checkpoint_uuid
        trial_id = trial_id_of(self._id, trial.index)
        self.decisions.append(
            RunRequested(
                experiment_id=self._id,
                pool=settings.pool,
                slots=settings.slots,
                priority=settings.priority,
                max_slots=settings.max_slots,
                reason=reason,
                spec=RunSpec(
                    experiment_id=self._id,
                    trial_id=trial_id,
                    trial_index=trial.index,
                    run=trial.run + 1,
                    hparams=trial.hparams,
                    seed=trial.seed,
                    length=length,
                    time_metric=settings.search.time_metric,
                    restore=trial.restore or ([source] if source else []),
                    code_digest=self._experiment.code_digest,
                    config=self._experiment.config,
                    config_digest=self._experiment.config_digest,
                ),
                submission=self._experiment.submission,
            )
        )

    def _end(self) -> None:
        good = self._tally.get("completed", 0) + self._tally.get("stopped", 0)
        state: ExperimentState = "completed" if good else "errored"
        if self._phase in {"canceling", "killing"}:
            state = "canceled"
        counts = ", ".join(f"{self._tally[name]} {name}" for name in sorted(self._tally))
        trials = "1 trial" if self._created == 1 else f"{self._created} trials"
        self.decisions.append(
            ExperimentEnded(
                experiment_id=self._id, state=state, reason=f"{trials}: {counts or 'none'}"
            )
        )
