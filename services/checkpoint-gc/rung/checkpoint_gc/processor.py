"""The checkpoint collector: which checkpoints are no longer wanted.

Theory of operation
===================

The state is that of one experiment. Facts: the experiment's policy, checkpoints stored, damaged,
pinned and deleted, validations, the ends of runs, of trials and of the experiment. Decision: a
checkpoint is retired. The shell then deletes its files and records that they are gone.

    stored ──no rule keeps it──▶ retired ──files deleted──▶ deleted (forgotten)

Kept is the union of

* the best n of the experiment, the best n and the latest n of each trial (`checkpoint_storage` of
  the experiment file; best by the searcher's metric, latest by steps completed);
* what is pinned or held;
* of a trial that may train on, the newest two: one to resume from, one in case that is damaged.

A checkpoint is retired as soon as no rule keeps it: when a newer or better one comes, when its
trial ends, or when it is found damaged. Damaged ones are kept only if pinned, and never count.
A validation and the checkpoint of its step come in either order; the newest checkpoints of a live
trial are kept anyway, so one whose validation is still to come is not lost.

A checkpoint's cost is the validation of its own run at its step; where that run reported none,
that of the newest other run at that step. A checkpoint without a finite value has no rank: it can
be among the latest of its trial but not among the best. Of two that are equally good, the one with
fewer steps is better, then the smaller id. Of two at one step, the one stored later is newer, as
for the searcher.

A run that was given up may go on storing until its agent learns of it. The searcher does not
restore such *late* checkpoints, so the newest two are counted twice: over all, and without them.

A search whose trials start from each other's checkpoints (`SearchOptions.SHARES`, by the method
that the configuration names) *holds* each of them from the moment at which it is stored until the
searcher releases it (`checkpoint.released`). Late ones are not held: the searcher ignores them.

The state ends with the experiment: every trial is closed then, and nothing is held. What was not
retired by then stays. But an agent that was taken for lost may be heard of later, with checkpoints
that its run had stored; so the state stays for as long as the end of such a run was not reported.
Nor does a run that is killed wait for its checkpoints: its end names those that are under way, and
the state stays until they have come, or their agent has reported that they never will.

One fact may change the checkpoints of its trial, and those that it pushed out of the best of the
experiment, which now follow right behind them in the ranking. Only these are judged anew, so a
fact costs in proportion to the checkpoints of a trial, not of the experiment.

Invariants
----------

* Between two facts every checkpoint in the state is kept by some rule.
* A retired checkpoint never comes back; pinning it then is too late and changes nothing.
* Nothing is retired before the policy is known.

Not handled: which checkpoints other experiments use (the gateway pins them before it accepts
these), and files that were never part of a complete checkpoint.
"""

import math
from bisect import bisect_left, insort
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator
from heapq import nlargest, nsmallest
from typing import Final, assert_never

from rung.checkpoint_gc.state import (
    Checkpoint,
    Policy,
    Rank,
    State,
    Trial,
    policy_of,
    shares_checkpoints,
)
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

LIVE_NEWEST: Final = 2
"""How many of its newest checkpoints a trial that may train on keeps."""

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


class CheckpointGC:
    """The processor of the topic `experiments`; see `rung.runtime.Processor`."""

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
    """Set a checkpoint's place in the ranking."""
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
    protected = ChainMap(state.pinned, state.held)
    return [
        CheckpointRetired(
            experiment_id=state.experiment_id,
            trial_id=each,
            checkpoint_id=checkpoint_id,
            reason=reason,
        )
        for each in dict.fromkeys(trial_ids)
        for checkpoint_id, reason in _unwanted(policy, state.trials[each], best)
        if checkpoint_id not in protected
    ]


def _unwanted(
    policy: Policy, trial: Trial, best_of_experiment: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the checkpoints of a trial that the policy does not keep, and why, by arrival."""
    intact = {name: found for name, found in trial.checkpoints.items() if found.damaged is None}
    ranks = [rank for name, found in intact.items() if (rank := found.rank(name))]
    kept = {name for _, _, name in nsmallest(policy.trial_best, ranks)}
    kept.update(_newest(policy.trial_latest, intact.items()), best_of_experiment)
    reason = f"not among {policy}"
    if not trial.ended:
        kept.update(_newest(LIVE_NEWEST, intact.items()))
        kept.update(_newest(LIVE_NEWEST, (pair for pair in intact.items() if not pair[1].late)))
        reason += f", newest {LIVE_NEWEST} of a live trial"
    for name, found in trial.checkpoints.items():
        if name not in kept:
            yield name, reason if found.damaged is None else f"damaged: {found.damaged}"


def _newest(count: int, checkpoints: Iterable[tuple[str, Checkpoint]]) -> list[str]:
    ages = ((found.steps, found.arrival, name) for name, found in checkpoints)
    return [name for _, _, name in nlargest(count, ages)]
