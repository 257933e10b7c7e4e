"""The searcher: all transitions and decisions of an experiment and its trials.

Theory of operation
===================

An experiment is *new* until it is submitted, then *active* or *paused*, and *ended* at last, by
way of *canceling* or *killing* where a user asked for that, and of *spent* where it has reached
its limit. A trial is in one of these states:

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

1. The trial was stopped: it is closed as stopped, however the run ended. It was killed by its
   user: it is closed as canceled.
2. The experiment is being canceled or killed: it is closed as canceled. It is spent: it is closed
   as completed if it reached the last rung, else as stopped.
3. The script refused its hyperparameters: closed as errored; the method may replace it.
4. The run had gone past its length and was withdrawn: it counts as trained.
5. It was lost, or dropped while waiting, or killed, or failed for a fault of the machine (a full
   disk): a new run, which counts as no restart.
6. It failed: a new run from the newest checkpoint; after more than `max_restarts`, or with one
   fault at one step three times in a row, errored: a fault that repeats itself is no accident. At
   once errored where the fault lies in the code, which is the same bytes for every run
   (`FAULTS_OF_CODE`), and where a line of the trial's log matched a policy with `cancel_retries`,
   also if the fault is the machine's.
7. It acknowledged a preemption: a new run once there may be one. (Had it reached its length, that
   run has nothing left to do and is over at once.)
8. It reached its length: trained. The method has the trial rest; at the last rung it is completed.
9. It was withdrawn: a new run once there may be one.
10. It ended by itself before its length, or has none: completed.

What a usable result is
-----------------------

A trial has a result if it reported at least one finite value of the searcher's metric. Where there
is nothing to compare (`single`, not `NEEDS_VALUE`), a trial that never validated has one too if it
stored a checkpoint. A trial that would be closed as completed, or as stopped after values of which
none was finite, and has no result, is closed as errored, with what it lacks as the cause. A trial
that failed for good is errored whatever it had reported: its last word was a fault.

A search is completed if a trial is completed: trained as far as the search wanted, or as far as
its script did. Stopped trials are what the better ones were compared with. Where none of the
better ones was completed they make a search completed only if none errored (a user may have ended
those that were left). Otherwise it is errored: so a script that fails at its second epoch makes
every search errored, whichever of its trials were stopped before they came to that.

The end of an experiment quotes the commonest cause of its errored trials with the first of them;
causes are alike if they differ in numbers, addresses and folders alone (`rung.events.failure`).

Extensions
----------

A user may ask for more trials, or for a longer length, until the search has ended; each method
answers whether that is possible (`SearchOptions.extension`). The fact changes the method, the
decision `search.extended` the plan. Where lengths change, runs are withdrawn and requested again
with the new one, from the checkpoints that they leave. What is less than planned is ignored, so
that a repeated request changes nothing.

Resources
---------

A user may change priority, weight, `max_slots` and pool until the search has ended. Runs that are
requested from then on have the new values; `experiment.resources_changed` gives them to the
scheduler, for those that wait or train. For another pool, the runs of the one before are
withdrawn; they checkpoint, and the next ones of their trials go on there.

The limit
---------

`resources.max_slot_hours` limits what all runs of an experiment use together. There is no clock
here: the gateway, which counts slot time, writes `experiment.slot_time_counted` once the count is
at the limit. The count is kept, so that a user who lowers the limit below it ends the experiment,
and compared with the limit of this moment, so that one who raised it just before does not.

A spent experiment runs nothing more. Its runs are withdrawn as by a cancellation, and trials are
closed as stopped; but whether it is completed or errored depends on its results, as if the search
had stopped these trials. A kill overrides that, a cancellation asks for nothing more.

Steps
-----

As many decisions may follow from one fact as a search has trials: the first of a search without
`max_concurrent_trials`, and its pause. A step decides at most `DECISIONS_MAX`, about what takes
a few milliseconds. If more follows, its last decision is `search.deferred`; a relay answers with
the fact `search.continued`, from which the next step follows. One such fact is on its way at a
time (`Experiment.deferred`). Since whatever follows is derived from the state, a step takes up
where the one before ended, also where another fact came first: trials have the indices, seeds and
hyperparameters that they would have had at once. Not divided are the withdrawals that follow
from a longer length or another pool, which are as many as runs are under way, and releases.

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
* a completed trial has a result, and a completed search a trial with one;
* where checkpoints are held, no run starts from one that was released.

Not handled: time-outs (the agent and the scheduler report a run that never ends as lost); slots (a
run is requested whether or not there is room).
"""

from typing import Any, Final, Literal, NamedTuple, TypeGuard, assert_never, get_args

from msgspec.structs import replace

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
    ExtensionRequested,
    KillRequested,
    LimitReached,
    PauseRequested,
    ResourcesChanged,
    ResourcesRequested,
    ResumeRequested,
    SearchContinued,
    SearchDeferred,
    SearchExtended,
    SearchPlanned,
    SlotTimeCounted,
    Submission,
    limit_words,
)
from rung.events.failure import add_failure, failed_sentence
from rung.events.installation import LEVEL
from rung.events.trial import (
    ENDED_EARLY,
    FAULTS_OF_CODE,
    ExitOutcome,
    LogMatched,
    RunRequested,
    RunSpec,
    RunWithdrawn,
    TrialClosed,
    TrialExited,
    TrialKillRequested,
    TrialMetadataSet,
    TrialPromoted,
    TrialRequested,
    TrialStopped,
    TrialValidated,
    Withdrawal,
    comparable,
    cost_of,
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
    | TrialKillRequested
    | ExtensionRequested
    | ResourcesRequested
    | SlotTimeCounted
    | TrialValidated
    | TrialExited
    | AllocationLost
    | AllocationDropped
    | CheckpointStored
    | CheckpointDamaged
    | TrialMetadataSet
    | LogMatched
    | SearchContinued
)
"""The facts that the searcher folds, beside the submission."""
Decision = (
    SearchPlanned
    | SearchDeferred
    | SearchExtended
    | ResourcesChanged
    | LimitReached
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
DECISIONS_MAX: Final = 200
"""How many decisions follow from one fact; further ones follow in further steps."""
_UNIT: Final = 2
"""How many decisions are made together, as those that a trial exists and runs."""

_HOUR_MS: Final = 3_600_000

_WITHDRAWALS: Final[dict[Phase, tuple[Withdrawal, str]]] = {
    "paused": ("preempt", "paused"),
    "canceling": ("preempt", "the experiment was canceled"),
    "killing": ("kill", "the experiment was killed"),
}
"""How the runs of an experiment in a phase are withdrawn, and why."""
_KILLED: Final = Fate("canceled", "its user killed it")
_CANCELED: Final = Fate("canceled", "the experiment was canceled")
_SPENT: Final = Fate("stopped", "the experiment has reached its limit of slot-hours")

Outcome = ExitOutcome | Literal["lost", "dropped"]

Handles = ExperimentSubmitted | Fact | Decision


class Searcher:
    """The processor of the topic `experiments`; see `rung.runtime.Processor`."""

    name = "searcher"
    facts = topics.EXPERIMENTS
    decisions = topics.SEARCHES
    handles = Handles
    level = LEVEL
    version = 6
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
        areas=event.areas,
    )


def _learn(  # noqa: C901, PLR0912 - one case per fact
    state: State, experiment: Experiment, event: Fact
) -> None:
    """Fold a fact."""
    match event:
        case TrialValidated():
            _validate(experiment, event)
        case TrialExited():
            message = event.message or event.outcome
            end = End(
                event.outcome,
                message,
                event.fault,
                event.steps_completed,
                machine=event.machine,
                uploading=bool(event.under_way),
            )
            _end_run(state, experiment, event.trial_id, event.run, end)
        case AllocationLost() | AllocationDropped():
            end = End("lost" if isinstance(event, AllocationLost) else "dropped", event.reason)
            _end_run(state, experiment, event.trial_id, event.run, end)
        case CheckpointStored():
            _store(experiment, event)
        case CheckpointDamaged():
            _damage(experiment, event)
        case CancelRequested():
            if state.phase not in {"killing", "spent"}:
                state.phase = "canceling"
            _interrupt(experiment, _CANCELED)
        case KillRequested():
            state.phase = "killing"
            _interrupt(experiment, _CANCELED)
        case TrialMetadataSet():
            trial = experiment.trial(event.trial_id)
            if trial is not None:
                trial.metadata = event.metadata
        case LogMatched():
            _match(experiment, event)
        case TrialKillRequested():
            if state.phase in {"active", "paused"}:
                _kill(experiment, event.trial_id)
        case ExtensionRequested():
            if state.phase in {"active", "paused"}:
                _extend(experiment, event)
        case ResourcesRequested():
            _change_resources(experiment, event)
            _hold_to_limit(state, experiment)
        case SlotTimeCounted():
            experiment.slot_ms = max(experiment.slot_ms, event.slot_ms)
            _hold_to_limit(state, experiment)
        case SearchContinued():
            experiment.deferred = False
        case PauseRequested() | ResumeRequested():
            pass  # the decisions that answer them count
        case _:
            assert_never(event)


def _match(experiment: Experiment, event: LogMatched) -> None:
    """Fold that a line of a trial's log matched a log policy, whichever of its runs printed it.

    Of a trial on several agents, the match on one may come after the end of the run on another.
    """
    trial = experiment.trial(event.trial_id)
    if trial is None:
        return
    if event.action == "cancel_retries" and not trial.unretried:
        trial.unretried = (
            f"its log matched the policy {event.policy!r} in run {event.run} on {event.agent_id}"
        )
    elif event.action == "exclude_node" and event.agent_id not in trial.excluded:
        trial.excluded.append(event.agent_id)


def _kill(experiment: Experiment, trial_id: str) -> None:
    """Fold that a user ends a trial: at once, unless a run of it has to end first."""
    trial = experiment.trial(trial_id)
    if trial is None or trial.stopped is not None:
        return
    if trial.running:
        trial.killed = True
        return
    if trial.index in experiment.due:
        del experiment.due[trial.index]
        experiment.training -= 1
        experiment.method.killed(trial, resting=False)
    else:
        trial.rung += 1
        experiment.method.killed(trial, resting=True)
    experiment.closing[trial.index] = _KILLED


def _extend(experiment: Experiment, event: ExtensionRequested) -> None:
    """Fold that a search is to have more; what would be less, or is not possible, is ignored."""
    planned = sum(plan.trials for plan in experiment.plan)
    trials = event.trials if event.trials and event.trials > planned else None
    longest = max((plan.lengths[-1] for plan in experiment.plan if plan.lengths), default=None)
    length = event.max_time if longest and event.max_time and event.max_time > longest else None
    if (trials is None and length is None) or experiment.settings.search.extension(trials, length):
        return
    experiment.method.extend(trials, length)
    if length is None:
        return
    for trial in experiment.trials:
        if not trial.closed and trial.length is not None:
            trial.length, trial.overrun, trial.due_steps = length, 0, None


def _change_resources(experiment: Experiment, event: ResourcesRequested) -> None:
    """Fold that an experiment is to have other resources, unless its author saw older ones."""
    if event.version not in {None, experiment.changes}:
        return
    experiment.changes += 1
    settings, submission = experiment.settings, experiment.submission or Submission()
    before = settings.pool, settings.priority, settings.max_slots, submission.weight
    if event.pool is not None:
        settings.pool = event.pool
    if event.priority is not None:
        settings.priority = event.priority
    if event.max_slots is not None:
        settings.max_slots = event.max_slots or None
    if event.max_slot_hours is not None:
        settings.max_slot_hours = event.max_slot_hours or None
    if event.weight not in {None, submission.weight}:
        submission = replace(submission, weight=event.weight)
        experiment.submission = submission
    after = settings.pool, settings.priority, settings.max_slots, submission.weight
    experiment.retell = experiment.retell or before != after


def _hold_to_limit(state: State, experiment: Experiment) -> None:
    """Fold that an experiment has used as much as it may, if it has."""
    limit = experiment.settings.max_slot_hours
    if state.phase not in {"active", "paused"} or limit is None:
        return
    if experiment.slot_ms >= limit * _HOUR_MS:
        state.phase, experiment.spent = "spent", limit
        _interrupt(experiment, _SPENT)


def _validate(experiment: Experiment, event: TrialValidated) -> None:
    trial = experiment.current(event.trial_id, event.run)
    if trial is None or trial.stopped is not None or trial.killed:
        return
    search = experiment.settings.search
    time, timed = _time_of(event, search.time_metric)
    value = event.metrics.get(search.metric)
    cost = cost_of(value, smaller_is_better=search.smaller_is_better)
    cost = WORST if cost is None else cost
    first = len(trial.results)
    lengths = experiment.lengths(trial)
    if report(trial, event.steps_completed, time, cost, lengths, timed=timed):
        if cost != WORST:
            trial.finite, trial.broken = True, ""
        elif not trial.broken:
            shown = "absent" if value is None else value
            trial.broken = f"{shown} at batch {event.steps_completed}"
        experiment.method.reported(trial, first)


def _time_of(event: TrialValidated, time_metric: str) -> tuple[float, bool]:
    """Return a report's time, and whether it is in units of the time metric for certain."""
    time = comparable(event.metrics.get(time_metric))
    if time is not None:
        return time, True
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
        trial.stored = True
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
    uploading: bool = False
    """Whether uploads of its checkpoints go on."""


def _end_run(state: State, experiment: Experiment, trial_id: str, run: int, end: End) -> None:
    """Fold the end of a run."""
    trial = experiment.current(trial_id, run)
    if trial is None:
        return
    trial.stored = trial.stored or end.uploading
    withdrawn, trial.running, trial.withdrawn = trial.withdrawn, False, None
    if trial.stopped is not None:
        _leave(experiment, trial, "stopped", Fate("stopped", trial.stopped))
    elif trial.killed:
        experiment.training -= 1
        experiment.method.killed(trial, resting=False)
        experiment.closing[trial.index] = _KILLED
    elif state.phase in {"canceling", "killing"}:
        experiment.training -= 1
        experiment.closing[trial.index] = _CANCELED
    elif state.phase == "spent":
        experiment.training -= 1
        lengths = experiment.lengths(trial)
        last = bool(lengths) and trial.length is not None and trial.length >= lengths[-1]
        done = trial.reached and last
        experiment.closing[trial.index] = _completed(trial) if done else _SPENT
    elif end.outcome == "invalid_hp":
        text = f"the script refused its hyperparameters: {end.message}"
        _leave(experiment, trial, "invalid_hp", Fate("errored", text, text))
    else:
        _go_on(experiment, trial, end, withdrawn=withdrawn is not None)


def _go_on(experiment: Experiment, trial: Trial, end: End, *, withdrawn: bool) -> None:
    """Fold the end of a run of a trial that may go on (questions 4 to 10)."""
    outcome, message = end.outcome, end.message
    if trial.delivered or (withdrawn and trial.overrun and experiment.compares):
        _trained(experiment, trial)
    elif outcome in {"lost", "dropped", "killed"}:
        experiment.due[trial.index] = f"the run before was {outcome}: {message}"
    elif outcome == "failed" and end.machine and not trial.unretried:
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
    return f"{ENDED_EARLY} {max(trial.time, 0):g} of {trial.length}"


def _fail(experiment: Experiment, trial: Trial, end: End) -> None:
    message = end.message
    _count_failure(trial, end.fault, end.steps)
    most = experiment.settings.max_restarts
    if end.fault in FAULTS_OF_CODE:
        text = f"not tried again: {message}"
        _leave(experiment, trial, "errored", Fate("errored", text, message))
    elif trial.unretried:
        text = f"not tried again, because {trial.unretried}: {message}"
        _leave(experiment, trial, "errored", Fate("errored", text, message))
    elif trial.restarts > most:
        times = "once" if trial.restarts == 1 else f"{trial.restarts} times"
        text = f"failed {times}; max_restarts is {most}: {message}"
        _leave(experiment, trial, "errored", Fate("errored", text, message))
    elif trial.repeats >= REPEATS_MAX:
        where = "before its first step" if end.steps is None else f"at step {end.steps}"
        text = f"failed {trial.repeats} times in the same way {where}, so it is not tried again"
        _leave(experiment, trial, "errored", Fate("errored", f"{text}: {message}", message))
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
        experiment.closing[trial.index] = _completed(trial)


def _completed(trial: Trial) -> Fate:
    return Fate("completed", f"trained to {trial.length}")


def _leave(experiment: Experiment, trial: Trial, why: Leaving, fate: Fate) -> None:
    experiment.training -= 1
    experiment.method.left(trial, why)
    experiment.closing[trial.index] = fate


def _interrupt(experiment: Experiment, fate: Fate) -> None:
    """Fold that the experiment is to end early: trials without a run can be closed at once."""
    experiment.due.clear()
    for trial in experiment.trials:
        if not (trial.closed or trial.running or trial.index in experiment.closing):
            experiment.closing[trial.index] = fate


# Decisions, from the moment at which they are on record


def _carry_out(  # noqa: C901, PLR0912 - one case per decision
    state: State, experiment: Experiment, event: Decision
) -> None:
    """Fold a decision."""
    match event:
        case SearchPlanned() | SearchExtended():
            experiment.plan = event.brackets
        case SearchDeferred():
            experiment.deferred = True
        case ResourcesChanged():
            experiment.retell = False
        case LimitReached():
            experiment.announced = True
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
    trial.pool = event.pool
    experiment.due.pop(trial.index, None)


def _close(experiment: Experiment, event: TrialClosed) -> None:
    trial = _known(experiment, event.trial_id)
    assert not trial.running, event
    close(trial)
    experiment.living -= 1
    experiment.tally[event.state] = experiment.tally.get(event.state, 0) + 1
    experiment.closing.pop(trial.index, None)
    if event.cause:
        experiment.failures = add_failure(experiment.failures, event.cause, event.trial_id)


def close(trial: Trial) -> None:
    """Fold a trial's end; drop what only a living trial needs."""
    trial.closed, trial.running = True, False
    trial.hparams, trial.results, trial.checkpoints, trial.source = {}, [], [], []


# What follows from a fact


def _decide(  # noqa: C901, PLR0912 - one case per fact
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
            follow_up.withdraw_all()
        case ResumeRequested() if phase != state.phase:
            follow_up.decisions.append(ExperimentResumed(experiment_id=state.experiment_id))
        case CancelRequested() if phase == "canceling":
            follow_up.withdraw_all()
        case KillRequested():
            follow_up.withdraw_all()
        case SearchContinued():
            follow_up.withdraw_all()
        case ExtensionRequested():
            follow_up.extend()
        case TrialKillRequested():
            follow_up.kill(fact.trial_id)
        case SlotTimeCounted() | ResourcesRequested() if phase == "spent" and (
            not experiment.announced
        ):
            follow_up.end_at_limit()
        case ResourcesRequested() if experiment.retell and phase in {"active", "paused"}:
            follow_up.change_resources()
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
        self._failures = experiment.failures
        self._living = experiment.living
        self._created = len(experiment.trials)
        self._starts: list[str] = []
        self._deferred = False
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

    def extend(self) -> None:
        """Announce the search's new brackets, and withdraw the runs whose length has changed."""
        experiment = self._experiment
        brackets = experiment.method.brackets()
        if brackets == experiment.plan:
            return
        self.decisions.append(SearchExtended(experiment_id=self._id, brackets=brackets))
        if [plan.lengths for plan in brackets] == [plan.lengths for plan in experiment.plan]:
            return
        for trial in experiment.trials:
            if trial.running and trial.withdrawn is None and trial.stopped is None:
                self._withdraw(trial, "preempt", f"goes on to {trial.length}")

    def change_resources(self) -> None:
        """Announce other resources, and withdraw the runs of another pool than the present."""
        experiment = self._experiment
        settings, submission = experiment.settings, experiment.submission or Submission()
        self.decisions.append(
            ResourcesChanged(
                experiment_id=self._id,
                pool=settings.pool,
                priority=settings.priority,
                weight=submission.weight,
                max_slots=settings.max_slots,
            )
        )
        for trial in experiment.trials:
            elsewhere = trial.running and trial.pool != settings.pool
            if elsewhere and trial.withdrawn is None and trial.stopped is None:
                self._withdraw(trial, "preempt", f"goes on in pool {settings.pool}")

    def end_at_limit(self) -> None:
        """Announce that the experiment has used its slot-hours, and withdraw its runs."""
        experiment = self._experiment
        self.decisions.append(
            LimitReached(
                experiment_id=self._id,
                max_slot_hours=experiment.spent,
                slot_ms=experiment.slot_ms,
            )
        )
        self.withdraw_all()

    def withdraw_all(self) -> None:
        """Withdraw every run unless the experiment is active, also to kill a preempted one."""
        withdrawals = _WITHDRAWALS | {"spent": ("preempt", limit_words(self._experiment.spent))}
        found = withdrawals.get(self._phase)
        if found is None:
            return
        how, reason = found
        for trial in self._experiment.trials:
            if trial.running and trial.withdrawn not in {how, "kill"}:
                if self._defers():
                    break
                self._withdraw(trial, how, reason)

    def kill(self, trial_id: str) -> None:
        """Withdraw the run of a trial that its user ends."""
        trial = self._experiment.trial(trial_id)
        if trial is not None and trial.running and trial.withdrawn != "kill":
            self._withdraw(trial, "kill", _KILLED.reason)

    def conclude(self) -> list[Payload]:
        """Add all that follows; return all decisions."""
        for index, fate in self._experiment.closing.items():
            if self._defers():
                break
            self._close(self._experiment.trials[index], fate)
        if self._phase in {"active", "paused"}:
            self._stop()
        if self._phase == "active":
            self._run()
            self._move()
        ends = not self._deferred and not self._living and not self._wanted()
        self.release(everything=ends)
        if ends:
            self._end()
        if self._deferred and not self._experiment.deferred:
            self.decisions.append(SearchDeferred(experiment_id=self._id))
        return self.decisions

    def _defers(self) -> bool:
        """Return whether there is no room in this step for what would be decided next."""
        # The last place is that of `search.deferred`.
        full = len(self.decisions) + _UNIT >= DECISIONS_MAX
        self._deferred = self._deferred or full
        return full

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
        return self._phase == "paused" and any(self._experiment.method.moves(self._chance(), 1))

    def _chance(self) -> Chance:
        settings = self._experiment.settings
        return Chance(settings.space, settings.seed, self._created, settings.first)

    def _close(self, trial: Trial, fate: Fate) -> None:
        trial_id = trial_id_of(self._id, trial.index)
        fate = self._judge(trial, fate)
        self._living -= 1
        self._tally = {**self._tally, fate.state: self._tally.get(fate.state, 0) + 1}
        if fate.cause:
            self._failures = add_failure(self._failures, fate.cause, trial_id)
        self.decisions.append(
            TrialClosed(
                experiment_id=self._id,
                trial_id=trial_id,
                state=fate.state,
                reason=fate.reason,
                restarts=trial.restarts,
                cause=fate.cause,
            )
        )

    def _judge(self, trial: Trial, fate: Fate) -> Fate:
        """Return how a trial is closed: without a result, it is errored however it ended."""
        search = self._experiment.settings.search
        if fate.state in {"errored", "canceled"}:
            return fate
        if trial.finite and trial.broken:
            text = f"{fate.reason}; {search.metric} was {trial.broken} and from there on"
            return Fate(fate.state, text)
        if trial.finite or (fate.state == "stopped" and not trial.broken):
            return fate
        if trial.broken:
            cause = f"no value of {search.metric} was a finite number: it was {trial.broken}"
        elif trial.stored and not search.NEEDS_VALUE:
            return fate
        else:
            cause = f"the script reported no validation, so there is no {search.metric}"
        return Fate("errored", f"{cause}; {fate.reason}", cause)

    def _stop(self) -> None:
        for stop in self._experiment.method.stops():
            trial = self._experiment.trials[stop.index]
            if trial.closed:
                continue  # closed on record, by a version that decided otherwise
            if self._defers():
                break
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
                self._withdraw(trial, "preempt", f"stopped: {stop.reason}", final=True)

    def _withdraw(
        self, trial: Trial, how: Withdrawal, reason: str, *, final: bool = False
    ) -> None:
        self.decisions.append(
            RunWithdrawn(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, trial.index),
                run=trial.run,
                pool=trial.pool,
                how=how,
                reason=reason,
                final=final,
            )
        )

    def _run(self) -> None:
        for index, reason in self._experiment.due.items():
            if self._defers():
                return
            trial = self._experiment.trials[index]
            self._request(trial, trial.length, reason)

    def _move(self) -> None:
        free = self._experiment.free
        if not free:  # as after nearly all reports
            return
        for move in self._experiment.method.moves(self._chance(), free):
            if self._defers():
                return
            match move:
                case Create():
                    self._create(move)
                case Continue():
                    self._continue(move)
                case _:
                    assert_never(move)

    def _create(self, move: Create) -> None:
        index, settings = self._created, self._experiment.settings
        seed = trial_seed(settings.seed, settings.first + index)
        hparams = self._chance().sample(0) if move.hparams is None else move.hparams
        parent, restore = self._start(move.start)
        self._created += 1
        self._living += 1
        self.decisions.append(
            TrialRequested(
                experiment_id=self._id,
                trial_id=trial_id_of(self._id, index),
                index=index,
                bracket=move.bracket,
                hparams=hparams,
                seed=seed,
                parent=parent,
                restore=restore,
            )
        )
        trial = Trial(index, move.bracket, hparams, seed, source=restore)
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
            metadata=trial.metadata,
            excluded=trial.excluded,
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
                    metadata=trial.metadata,
                    areas=self._experiment.areas,
                ),
                submission=self._experiment.submission,
                excluded=list(trial.excluded),
            )
        )

    def _end(self) -> None:
        state: ExperimentState = "completed" if self._has_result() else "errored"
        killed = self._tally.keys() == {"canceled"}
        if killed or self._phase in {"canceling", "killing"}:
            state = "canceled"
        self.decisions.append(
            ExperimentEnded(experiment_id=self._id, state=state, reason=self._summary())
        )

    def _has_result(self) -> bool:
        completed, stopped = self._tally.get("completed", 0), self._tally.get("stopped", 0)
        if completed:
            return True
        compares = self._experiment.settings.search.NEEDS_VALUE
        return (
            stopped > 0
            and not self._tally.get("errored", 0)
            and any(
                trial.finite or (trial.stored and not compares)
                for trial in self._experiment.trials
            )
        )

    def _summary(self) -> str:
        found = self._counts()
        if self._phase != "spent":
            return found
        limit = limit_words(self._experiment.spent)
        if not (self._tally.get("errored", 0) or self._has_result()):
            limit += " before any trial had a result"
        return f"{limit}; {found}"

    def _counts(self) -> str:
        tally = dict(self._tally)
        trials = "1 trial" if self._created == 1 else f"{self._created} trials"
        failed = failed_sentence(self._created, tally.get("errored", 0), self._failures)
        if failed:
            del tally["errored"]
        counts = ", ".join(f"{tally[name]} {name}" for name in sorted(tally))
        if failed:
            return f"{failed}; {counts}" if counts else failed
        return f"{trials}: {counts or 'none'}"
