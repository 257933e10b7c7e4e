"""The checkpoint collector: which checkpoints are no longer wanted.

Theory of operation
===================

The state is that of one experiment. Facts: the experiment's policy, checkpoints stored, damaged,
pinned and deleted, validations, the ends of runs, of trials and of the experiment. Decision: a
checkpoint is retired. The shell then deletes its files and records that they are gone.

    stored ──no rule of `retention.py` names it──▶ retired ──files deleted──▶ deleted (forgotten)

A checkpoint is retired as soon as no rule names it, not only when the experiment ends. Rules stop
naming a checkpoint when a newer or better one comes, when its trial ends, or when it is found
damaged. A validation and the checkpoint of its step come in either order; the newest checkpoints
of a live trial are kept anyway, so one whose validation is still to come is not lost.

A checkpoint's cost is the validation of its own run at its step; where that run reported none,
that of the newest other run at that step. A value that is not finite gives no rank.

A search whose trials start from each other's checkpoints (`SearchOptions.SHARES`, by the method
that the configuration names) *holds* each of them from the moment at which it is stored, and so
before anything can be decided of it, until the searcher releases it (`checkpoint.released`). A
checkpoint that is stored after its run has ended is not held: the searcher does not take it.

The state ends with the experiment: every trial is closed then, and nothing is held. What was not
retired by then stays. But an agent that was taken for lost may be heard of later, with checkpoints
that its run had stored; so the state stays for as long as the end of such a run was not reported.
Nor does a run that is killed wait for its checkpoints: its end names those that are under way, and
the state stays until they have come, or their agent has reported that they never will.

What one fact may change: the checkpoints of its trial, and those that it pushed out of the best of
the experiment, which now follow right behind them in the ranking. Only these are judged anew, so
a fact costs in proportion to the checkpoints of a trial, not of the experiment.

Invariants
----------

* Between two facts every checkpoint in the state is named by some rule, or held.
* A retired checkpoint never comes back; pinning it then is too late and changes nothing.
* Nothing is retired before the policy is known.

Not handled: which checkpoints other experiments use (the gateway pins them before it accepts
these), and files that were never part of a complete checkpoint.
"""

import math
from bisect import bisect_left, insort
from collections import ChainMap
from typing import Any, assert_never

import msgspec
from msgspec import Struct, field

from rung.checkpoint_gc.retention import Checkpoint, Policy, Rank, unwanted
from rung.events import Payload, topic
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointPinned,
    CheckpointReleased,
    CheckpointRetired,
    CheckpointStored,
)
from rung.events.experiment import ExperimentEnded, ExperimentSubmitted
from rung.events.installation import LEVEL
from rung.events.trial import TrialClosed, TrialExited, TrialValidated
from rung.methods.table import options_named

Handles = (
    ExperimentSubmitted
    | TrialValidated
    | TrialExited
    | AllocationLost
    | AllocationDropped
    | TrialClosed
    | ExperimentEnded
    | CheckpointStored
    | CheckpointDamaged
    | CheckpointPinned
    | CheckpointReleased
    | CheckpointDeleted
    | CheckpointRetired
)


class Trial(Struct, kw_only=True):
    """One trial: what it saved and how it did."""

    ended: bool = False
    runs_over: int = 0
    """The highest run that is over."""
    lost: list[int] = field(default_factory=list[int])
    """Runs that were lost, and of whose ends their agents have not reported."""
    under_way: list[str] = field(default_factory=list[str])
    """Ids of checkpoints that are still to come, of runs that are over."""
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict[str, Checkpoint])
    costs: dict[str, dict[str, float | None]] = field(
        default_factory=dict[str, dict[str, float | None]]
    )
    """Steps → run → the metric, the lower the better; None: it was not finite."""

    def cost_at(self, steps: int, run: int) -> float | None:
        """Return how good the trial was after so many steps."""
        costs = self.costs.get(str(steps))
        if not costs:
            return None
        return costs[str(run) if str(run) in costs else max(costs, key=int)]


class State(Struct, kw_only=True):
    """One experiment."""

    experiment_id: str
    level: int = 1
    """The logic level of its decisions."""
    policy: Policy | None = None
    over: bool = False
    """Whether the experiment has ended."""
    trials: dict[str, Trial] = field(default_factory=dict[str, Trial])
    trial_of: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → trial id, of those that are neither retired nor deleted."""
    ranking: list[Rank] = field(default_factory=list[Rank])
    """All that have a rank, the best first."""
    pinned: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → who wants it."""
    shares: bool = False
    """Whether the search holds what its trials store."""
    held: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → trial id, of those that the search has not released."""
    retired: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint id → trial id, of those whose files are still to be deleted."""
    arrivals: int = 0


class CheckpointGC:
    """The process that decides `retirements`."""

    name = "checkpoint-gc"
    facts = topic.EXPERIMENTS
    decisions = topic.RETIREMENTS
    handles = Handles
    level = LEVEL
    version = 3
    state_type = State

    def initial(self, key: str) -> State:
        """Return an experiment of which nothing is known."""
        return State(experiment_id=key)

    def ended(self, state: State) -> bool:
        """Return whether the experiment has ended, and no more checkpoints are to be expected."""
        if not state.over or any(it.lost or it.under_way for it in state.trials.values()):
            return False
        policy = state.policy  # the last that came may have made others superfluous
        return policy is None or not any(_judge(state, policy, it) for it in state.trials)

    def evolve(self, state: State, event: Handles) -> None:  # noqa: C901 - one case per event
        """Fold a fact or a decision into the experiment."""
        match event:
            case ExperimentSubmitted():
                state.level = event.level
                state.policy = policy_of(event.config)
                state.shares = shares_checkpoints(event.config)
            case TrialValidated():
                _validate(state, event)
            case TrialExited() | AllocationLost() | AllocationDropped():
                _end_run(state, _trial(state, event.trial_id), event)
            case TrialClosed():
                _trial(state, event.trial_id).ended = True
            case ExperimentEnded():
                state.over = True
            case CheckpointStored():
                _store(state, event)
            case CheckpointDamaged():
                _damage(state, event)
            case CheckpointPinned():
                state.pinned.setdefault(event.checkpoint_id, event.by)
            case CheckpointReleased():
                state.held.pop(event.checkpoint_id, None)
            case CheckpointDeleted():
                state.retired.pop(event.checkpoint_id, None)
            case CheckpointRetired():
                _retire(state, event.checkpoint_id)
            case _:
                assert_never(event)

    def decide(self, state: State, fact: Handles) -> list[Payload]:
        """Return what a fact made superfluous."""
        match fact:
            case TrialValidated() | TrialClosed() | CheckpointStored():
                trial_id = fact.trial_id
            case CheckpointDamaged() | CheckpointReleased():
                trial_id = state.trial_of.get(fact.checkpoint_id, "")
            case _:
                return []
        if state.policy is None or trial_id not in state.trials:
            return []
        return _judge(state, state.policy, trial_id)


def policy_of(config: dict[str, Any]) -> Policy:
    """Return what an experiment's complete configuration says about retention.

    Raises:
        msgspec.ValidationError: it is not one that a gateway lets pass.
    """
    known = msgspec.convert(config, _Config)
    storage = known.checkpoint_storage
    return Policy(
        metric=known.searcher.metric,
        smaller_is_better=known.searcher.smaller_is_better,
        experiment_best=storage.save_experiment_best,
        trial_best=storage.save_trial_best,
        trial_latest=storage.save_trial_latest,
    )


def shares_checkpoints(config: dict[str, Any]) -> bool:
    """Return whether trials of the configured search start from the checkpoints of others."""
    method = options_named(config["searcher"].get("name"))
    return method is not None and method.SHARES


class _Storage(Struct):
    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1


class _Searcher(Struct):
    metric: str
    smaller_is_better: bool = True


class _Config(Struct):
    searcher: _Searcher
    checkpoint_storage: _Storage = field(default_factory=_Storage)


def _trial(state: State, trial_id: str) -> Trial:
    return state.trials.setdefault(trial_id, Trial())


def _end_run(
    state: State, trial: Trial, event: TrialExited | AllocationLost | AllocationDropped
) -> None:
    if event.run in trial.lost:
        trial.lost.remove(event.run)
    elif isinstance(event, AllocationLost) and event.run > trial.runs_over:
        trial.lost.append(event.run)
    trial.runs_over = max(trial.runs_over, event.run)
    if isinstance(event, TrialExited):
        for checkpoint_id in event.under_way:
            if not _came(state, checkpoint_id) and checkpoint_id not in trial.under_way:
                trial.under_way.append(checkpoint_id)


def _validate(state: State, event: TrialValidated) -> None:
    policy = state.policy
    value = event.metrics.get(policy.metric) if policy else None
    if policy is None or value is None:
        return
    cost = None
    if not isinstance(value, str) and math.isfinite(value):
        cost = float(value) if policy.smaller_is_better else -float(value)
    trial = _trial(state, event.trial_id)
    trial.costs.setdefault(str(event.steps_completed), {})[str(event.run)] = cost
    for checkpoint_id, found in trial.checkpoints.items():
        if found.steps == event.steps_completed:
            _rank(state, trial, checkpoint_id)


def _store(state: State, event: CheckpointStored) -> None:
    if _came(state, event.checkpoint_id):
        return
    trial = _trial(state, event.trial_id)
    if event.checkpoint_id in trial.under_way:
        trial.under_way.remove(event.checkpoint_id)
    trial.checkpoints[event.checkpoint_id] = Checkpoint(
        run=event.run,
        steps=event.steps_completed,
        arrival=state.arrivals,
        late=event.run <= trial.runs_over,
    )
    if state.shares and event.run > trial.runs_over:
        state.held[event.checkpoint_id] = event.trial_id
    state.arrivals += 1
    state.trial_of[event.checkpoint_id] = event.trial_id
    _rank(state, trial, event.checkpoint_id)


def _came(state: State, checkpoint_id: str) -> bool:
    return checkpoint_id in state.trial_of or checkpoint_id in state.retired


def _damage(state: State, event: CheckpointDamaged) -> None:
    trial = state.trials.get(event.trial_id)
    if trial is not None and event.checkpoint_id in trial.under_way:
        trial.under_way.remove(event.checkpoint_id)
    trial_id = state.trial_of.get(event.checkpoint_id)
    if trial_id is None:
        return
    found = state.trials[trial_id].checkpoints[event.checkpoint_id]
    _unrank(state, found.rank(event.checkpoint_id))
    found.damaged = event.reason


def _retire(state: State, checkpoint_id: str) -> None:
    trial_id = state.trial_of.pop(checkpoint_id)
    found = state.trials[trial_id].checkpoints.pop(checkpoint_id)
    _unrank(state, found.rank(checkpoint_id))
    state.retired[checkpoint_id] = trial_id


def _rank(state: State, trial: Trial, checkpoint_id: str) -> None:
    """Give a checkpoint its place in the ranking, or another one."""
    found = trial.checkpoints[checkpoint_id]
    _unrank(state, found.rank(checkpoint_id))
    found.cost = trial.cost_at(found.steps, found.run)
    rank = found.rank(checkpoint_id)
    if rank is not None:
        insort(state.ranking, rank)


def _unrank(state: State, rank: Rank | None) -> None:
    if rank is not None:
        place = bisect_left(state.ranking, rank)
        assert state.ranking[place] == rank, rank
        del state.ranking[place]


def _judge(state: State, policy: Policy, trial_id: str) -> list[Payload]:
    """Judge a trial's checkpoints anew, and those that they pushed out of the best."""
    count = policy.experiment_best
    best = {name for _, _, name in state.ranking[:count]}
    trial_ids = [trial_id]
    if count:
        pushed = state.ranking[count : count + len(state.trials[trial_id].checkpoints)]
        trial_ids += [state.trial_of[name] for _, _, name in pushed]
    return [
        CheckpointRetired(
            experiment_id=state.experiment_id,
            trial_id=each,
            checkpoint_id=checkpoint_id,
            reason=reason,
        )
        for each in dict.fromkeys(trial_ids)
        for checkpoint_id, reason in unwanted(
            policy,
            state.trials[each].checkpoints,
            live=not state.trials[each].ended,
            best_of_experiment=best,
            pinned=ChainMap(state.pinned, state.held),
        )
    ]
