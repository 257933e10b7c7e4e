"""The searcher: owns the life of an experiment and of its trials.

Theory of operation
===================

An experiment is *new* until it is submitted, then *active* or *paused*, and *ended* at last, by
way of *canceling* or *killing* where somebody asked for that. A trial is in one of these places:

    due        wants a run; there is none while the experiment is paused
    running    its current run was requested and has not ended; maybe it was withdrawn
    resting    reached its rung; the method may promote it or give it up (`promotion`, `hyperband`)
    closing    its runs are over; closed with the next decision
    closed     never trains again

Due and running trials *train*: they count against `max_concurrent_trials`, paused or not.

* `evolve` folds. Of a fact it takes what happened: results into the method (`method`), the end of
  a run into what is due or to be closed (`lifecycle`). Of a decision it takes what was decided:
  that a trial exists, runs, is withdrawn, promoted, given up, closed; that the experiment is
  paused, resumed, ended. What a recorded decision says is never second-guessed.
* `decide` looks at what is now due (`follow_up`): it closes, gives up, requests runs, fills free
  room with promotions and new trials, and ends the experiment with its last trial.

Invariants:

* exactly one run of a trial is current, and a new one is requested only after its end was heard;
* a trial is closed once, after its last run has ended, and every trial is;
* no more trials train than `max_concurrent_trials`, and no trial is created while paused;
* a rung counts a trial once, whatever was restarted, repeated or lost.

A method is told nothing of pauses, restarts and cancellations; it sees trials, results and ends.

Deliberately not handled: time-outs (a run that never ends is the agent's and the scheduler's
concern: they say `lost`); slots (a run is requested whether or not there is room for it).
"""

from typing import assert_never

from rung.events import Payload
from rung.events import topic as topics
from rung.events.checkpoint import CheckpointDamaged, CheckpointStored
from rung.events.experiment import (
    CancelRequested,
    ExperimentEnded,
    ExperimentPaused,
    ExperimentResumed,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    ResumeRequested,
    SearchPlanned,
)
from rung.events.trial import (
    RunEnded,
    RunRequested,
    RunWithdrawn,
    TrialClosed,
    TrialExited,
    TrialPromoted,
    TrialRequested,
    TrialStopped,
    TrialValidated,
)
from rung.searcher import lifecycle
from rung.searcher.follow_up import FollowUp
from rung.searcher.search_settings import read_settings
from rung.searcher.state import Experiment, Phase, State, plan_method
from rung.searcher.trial import Trial

Handles = (
    ExperimentSubmitted
    | PauseRequested
    | ResumeRequested
    | CancelRequested
    | KillRequested
    | TrialValidated
    | TrialExited
    | RunEnded
    | CheckpointStored
    | CheckpointDamaged
    | SearchPlanned
    | ExperimentPaused
    | ExperimentResumed
    | ExperimentEnded
    | TrialRequested
    | RunRequested
    | RunWithdrawn
    | TrialPromoted
    | TrialStopped
    | TrialClosed
)


class Searcher:
    """The decider of the topic `experiments`; see `rung.runtime.Processor`."""

    name = "searcher"
    facts = topics.EXPERIMENTS
    decisions = topics.SEARCHES
    handles = Handles
    version = 2
    state_type = State

    def initial(self, key: str) -> State:
        """Return the state of an experiment of which nothing is known."""
        return State(experiment_id=key)

    def evolve(self, state: State, event: Handles) -> None:
        """Fold a fact or a decision."""
        if isinstance(event, ExperimentSubmitted):
            _submit(state, event)
        elif state.experiment is not None:
            _evolve(state, state.experiment, event)

    def decide(self, state: State, fact: Handles) -> list[Payload]:
        """Return what follows from a fact."""
        if state.experiment is None:
            return []
        return _decide(state, state.experiment, fact)

    def ended(self, state: State) -> bool:
        """Return whether the experiment is over."""
        return state.phase == "ended"


def _submit(state: State, event: ExperimentSubmitted) -> None:
    if state.phase != "new":
        return
    settings = read_settings(event.config)
    config = {name: value for name, value in event.config.items() if name != "hyperparameters"}
    method = plan_method(settings)
    state.phase = "active"
    state.experiment = Experiment(
        settings, config, event.code_digest, method, submission=event.submission
    )


def _evolve(  # noqa: C901, PLR0912 - one case per event
    state: State, experiment: Experiment, event: Handles
) -> None:
    match event:
        case TrialValidated():
            lifecycle.report(experiment, event)
        case TrialExited():
            message = event.message or event.outcome
            end = lifecycle.End(
                event.outcome, message, event.fault, event.steps_completed, machine=event.machine
            )
            lifecycle.end_run(experiment, state.phase, event.trial_id, event.run, end)
        case RunEnded():
            end = lifecycle.End(event.outcome, event.reason)
            lifecycle.end_run(experiment, state.phase, event.trial_id, event.run, end)
        case CheckpointStored():
            lifecycle.store(experiment, event)
        case CheckpointDamaged():
            lifecycle.damage(experiment, event)
        case CancelRequested():
            if state.phase != "killing":
                state.phase = "canceling"
            lifecycle.interrupt(experiment)
        case KillRequested():
            state.phase = "killing"
            lifecycle.interrupt(experiment)
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
            trial = _known(experiment, event.trial_id)
            trial.rung = event.rung
            experiment.training += 1
            experiment.method.promoted(trial)
        case TrialStopped():
            trial = _known(experiment, event.trial_id)
            trial.stopped = event.reason
            experiment.method.stopped(trial)
        case TrialClosed():
            _close(experiment, event)
        case ExperimentSubmitted() | PauseRequested() | ResumeRequested():
            pass  # known already; what is decided of them counts
        case _:
            assert_never(event)


def _known(experiment: Experiment, trial_id: str) -> Trial:
    trial = experiment.trial(trial_id)
    assert trial is not None, trial_id
    return trial


def _create(experiment: Experiment, event: TrialRequested) -> None:
    assert event.index == len(experiment.trials), event
    trial = Trial(index=event.index, bracket=event.bracket, hparams=event.hparams, seed=event.seed)
    experiment.trials.append(trial)
    experiment.training += 1
    experiment.living += 1
    experiment.method.opened(trial)


def _request(experiment: Experiment, event: RunRequested) -> None:
    spec = event.spec
    trial = _known(experiment, spec.trial_id)
    assert not trial.running, event
    assert spec.run == trial.run + 1, event
    trial.start(spec.run, spec.length)
    experiment.due.pop(trial.index, None)


def _close(experiment: Experiment, event: TrialClosed) -> None:
    trial = _known(experiment, event.trial_id)
    assert not trial.running, event
    trial.close()
    experiment.living -= 1
    experiment.tally[event.state] = experiment.tally.get(event.state, 0) + 1
    experiment.closing.pop(trial.index, None)


def _decide(state: State, experiment: Experiment, fact: Handles) -> list[Payload]:
    """Return what follows; facts that are not named change nothing that anybody waits for."""
    if isinstance(fact, TrialValidated):  # by far the most: asked first
        follow_up = FollowUp(state.experiment_id, experiment, state.phase)
        trial = experiment.current(fact.trial_id, fact.run)
        if trial is not None:
            follow_up.curb(trial)
        return follow_up.conclude()
    phase = _phase_after(state, fact)
    follow_up = FollowUp(state.experiment_id, experiment, phase)
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
        case TrialExited() | RunEnded():
            pass
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
