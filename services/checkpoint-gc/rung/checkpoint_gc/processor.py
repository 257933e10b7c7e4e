"""The checkpoint collector: which checkpoints are no longer wanted, and which experiments.

Theory of operation
===================

The state is that of one experiment. Facts: the experiment's policy and its changes, checkpoints
stored, damaged, pinned and deleted, validations, the ends of runs, of trials and of the
experiment, what users ask to delete, and which checkpoints versions of models need. Decisions: a
checkpoint is retired, or the whole experiment; a checkpoint is held for a version of a model, or
not. The sink deletes the files of what is retired, and records that they are gone.

    stored ──no rule keeps it──▶ retired ──files deleted──▶ deleted (forgotten)

Kept is the union of

* the best n of the experiment, the best n and the latest n of each trial (`checkpoint_storage` of
  the experiment file; best by the searcher's metric, latest by steps completed);
* what is pinned, held, or registered as a version of a model;
* of a trial that may train on, the newest two: one to resume from, one in case that is damaged.

A checkpoint is retired as soon as no rule keeps it: when a newer or better one comes, when its
trial ends, or when it is found damaged. Damaged ones are kept only if pinned, and never count.
A validation and the checkpoint of its step come in either order; the newest checkpoints of a live
trial are kept anyway, so one whose validation is still to come is not lost.

A checkpoint's cost is the validation of its own run at its step; where that run reported none,
that of the newest other run at that step. A checkpoint without a finite value has no rank: it can
be among the latest of its trial but not among the best. Where none of a trial's has a rank, as of
a script that counts the steps of its checkpoints otherwise than those of its validations, the one
nearest to the trial's best validation is its best. Of two that are equally good, the one with
fewer steps is better, then the smaller id. Of two at one step, the one stored later is newer, as
for the searcher.

A run that was given up may go on storing until its agent learns of it. The searcher does not
restore such *late* checkpoints, so the newest two are counted twice: over all, and without them.

A search whose trials start from each other's checkpoints (`SearchOptions.SHARES`, by the method
that the configuration names) *holds* each of them from the moment at which it is stored until the
searcher releases it (`checkpoint.released`). Late ones are not held: the searcher ignores them.

**Deletion.** A user may delete a checkpoint, but not one that is held, or among the newest two of
a trial that may train on; nor one that an experiment starts from, unless the request names that
experiment: its owner was shown it, and it has ended. A request that cannot be met is dropped. An
experiment is deleted as a whole once it has ended. It may have ended for the gateway and not yet
here, where the searcher's decision is relayed to: then the request waits for that.

A request that names a time is *scheduled*: nothing goes before a fact says that it is so late
(`experiment.deletion_due`, written by `due`, which has the clock). Until then a user may ask for
the experiment back; and so does a pin of an experiment that the request did not name, whose
submission found the checkpoint while it was there.

**Pins.** Each pin is answered (`checkpoint.pin_answered`); the gateway accepts an experiment that
starts from the checkpoint behind that answer. Refused is what is deleted or retired, as far as
that is known: of an experiment that has ended, what was retired once is known to the gateway
alone, which has folded it when it has the answer.

**Versions of models.** A checkpoint that the directory wants to be held for a version of a model
(`checkpoint.hold_requested`) stays until that version releases it, whatever a request names:
`checkpoint.held`. Refused is what is deleted, damaged, retired, or of an experiment whose deletion
waits or is scheduled. The sink answers the directory. It looks for the files of what is held: of
an experiment that has ended it is not known here which checkpoints were retired once.

The state ends with the experiment: every trial is closed then, and nothing is held for the search.
What was not retired by then stays, until a user deletes it. Of an experiment that was *closed*
only its pins and holds are known any more, a deletion that is scheduled, and what is retired and
still to be deleted: the sink may be late, and no version may be registered of what goes. Without
any of these the state ends. So requests name what they are about, and find the experiment
*reopened*: closed, and without pins and holds. But an agent
that was taken for lost may report later, with checkpoints that its run had stored; so the state
stays for as long as the end of such a run was not reported. Nor does a run that is killed wait for
its checkpoints: its end names those that are under way, and the state stays until they have come,
or their agent has reported that they never will.

One fact may change the checkpoints of its trial, and those that it pushed out of the best of the
experiment, which now follow right behind them in the ranking. Only these are judged again, so a
fact costs in proportion to the checkpoints of a trial, not of the experiment.

Invariants
----------

* Between two facts every checkpoint in the state is kept by some rule.
* A retired checkpoint never comes back; pinning it then is too late and is refused.
* Nothing is retired before the policy is known.
* Nothing of an experiment goes by a deletion that was taken back, or whose time has not come.

* Nothing goes that a version of a model holds; nothing is held that goes.

Not handled: which checkpoints other experiments use (the gateway pins them before it accepts
these, and knows when they have ended), and files that were never part of a complete checkpoint.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator
from typing import Final, assert_never

from msgspec.structs import replace

from rung.checkpoint_gc.state import State, Trial, policy_of, shares_checkpoints
from rung.events import Payload, topic
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointDeletionRequested,
    CheckpointHeld,
    CheckpointHoldRefused,
    CheckpointPinned,
    CheckpointReleased,
    CheckpointRetired,
    CheckpointStored,
    PinAnswered,
)
from rung.events.directory import HoldReleased, HoldRequested
from rung.events.experiment import (
    DeletionDue,
    DeletionRequested,
    DeletionScheduled,
    ExperimentDeleted,
    ExperimentEnded,
    ExperimentRestored,
    ExperimentRetired,
    ExperimentSubmitted,
    RestorationRequested,
    RetentionChanged,
)
from rung.events.installation import LEVEL
from rung.events.trial import TrialClosed, TrialExited, TrialValidated, cost_of
from rung.retention import Checkpoint, Policy, Rank, restorable, unwanted

AS_REQUESTED: Final = "deleted as requested"
"""Why a checkpoint is retired that a user asked to delete."""

_OfOpen = (
    ExperimentSubmitted
    | TrialValidated
    | TrialExited
    | AllocationLost
    | AllocationDropped
    | TrialClosed
    | ExperimentEnded
    | CheckpointStored
    | CheckpointDamaged
    | CheckpointReleased
    | CheckpointDeletionRequested
    | RetentionChanged
)
_Request = CheckpointDeletionRequested | RetentionChanged | DeletionRequested | HoldRequested
_Decision = (
    CheckpointRetired
    | CheckpointHeld
    | CheckpointHoldRefused
    | PinAnswered
    | DeletionScheduled
    | ExperimentRestored
    | ExperimentRetired
)
Handles = (
    _OfOpen
    | CheckpointDeleted
    | CheckpointPinned
    | HoldRequested
    | HoldReleased
    | DeletionRequested
    | RestorationRequested
    | DeletionDue
    | ExperimentDeleted
    | _Decision
)


class CheckpointGC:
    """The processor of the topic `experiments`; see `rung.runtime.Processor`."""

    name = "checkpoint-gc"
    facts = topic.EXPERIMENTS
    decisions = topic.RETIREMENTS
    handles = Handles
    level = LEVEL
    reopened_by = (
        CheckpointPinned
        | HoldRequested
        | CheckpointDeletionRequested
        | RetentionChanged
        | DeletionRequested
    )
    version = 6
    state_type = State

    def initial(self, key: str) -> State:
        """Return an experiment of which nothing is known."""
        return State(experiment_id=key)

    def reopened(self, key: str) -> State:
        """Return an experiment of which nothing is known but that it has ended."""
        return State(experiment_id=key, over=True, closed=True)

    def ended(self, state: State) -> bool:
        """Return whether it has ended, and nothing is to come, or known to stay or to go."""
        known = state.pinned or state.registered or state.retired or state.going
        return not known and state.scheduled is None and _is_over(state)

    def evolve(self, state: State, event: Handles) -> None:  # noqa: C901, PLR0912 - one case per event
        """Fold a fact or a decision into the experiment."""
        if not isinstance(event, _Decision) and _is_over(state):
            _close(state)
        if state.closed and isinstance(event, _Request):
            state.area = state.area or event.area
        match event:
            case CheckpointPinned():
                _pin(state, event)
            case HoldRequested() | CheckpointHoldRefused() | PinAnswered():
                pass  # it is decided at once
            case CheckpointHeld():
                holders = state.registered.setdefault(event.checkpoint_id, [])
                holders.append(event.model_version_id)
            case HoldReleased():
                _let_go(state, event)
            case CheckpointDeleted():
                state.retired.pop(event.checkpoint_id, None)
            case ExperimentDeleted():
                state.going = False
            case DeletionRequested():
                state.deletion = None if state.over else event
            case RestorationRequested():
                state.deletion = None
            case DeletionDue():
                pass  # the decision on it makes the change
            case DeletionScheduled():
                state.scheduled, state.deletion = event, None
            case ExperimentRestored():
                state.scheduled = None
            case CheckpointRetired():
                _retire(state, event.checkpoint_id)
            case ExperimentRetired():
                _delete(state)
            case _:
                if not state.closed:
                    _evolve_open(state, event)

    def decide(self, state: State, fact: Handles) -> list[Payload]:  # noqa: C901, PLR0911, PLR0912 - one case per fact
        """Return what a fact made superfluous, or what a user asked to delete and may go."""
        match fact:
            case HoldRequested():
                return [_hold(state, fact)]
            case DeletionRequested():
                return _deletion(state, fact)
            case ExperimentEnded():
                return _deletion(state, state.deletion)
            case DeletionDue():
                return _due(state, fact.at_ms)
            case RestorationRequested() if state.scheduled is not None:
                return [ExperimentRestored(experiment_id=state.experiment_id, reason="")]
            case CheckpointPinned():
                return _pinned(state, fact)
            case CheckpointDeletionRequested():
                return _requested(state, fact)
            case RetentionChanged() if state.closed:
                return _superfluous(state, fact)
            case RetentionChanged():
                trial_ids: Iterable[str] = state.trials
            case TrialValidated() | TrialClosed() | CheckpointStored():
                trial_ids = [fact.trial_id]
            case CheckpointDamaged() | CheckpointReleased() | HoldReleased():
                trial_ids = [state.trial_of.get(fact.checkpoint_id, "")]
            case _:
                return []
        if state.policy is None:
            return []
        return _judge(state, state.policy, [each for each in trial_ids if each in state.trials])


def _evolve_open(state: State, event: _OfOpen) -> None:  # noqa: C901 - one case per event
    """Fold a fact into an experiment of which more is to be expected."""
    match event:
        case ExperimentSubmitted():
            state.level = event.level
            state.area = event.area
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
        case CheckpointReleased():
            state.held.pop(event.checkpoint_id, None)
        case CheckpointDeletionRequested():
            pass  # it is decided at once, or not at all
        case RetentionChanged():
            if state.policy is not None:
                state.policy = replace(
                    state.policy,
                    experiment_best=event.save_experiment_best,
                    trial_best=event.save_trial_best,
                    trial_latest=event.save_trial_latest,
                )
        case _:
            assert_never(event)


def _is_over(state: State) -> bool:
    """Return whether the experiment has ended, and no more checkpoints are to be expected."""
    if state.closed:
        return True
    if not state.over or any(it.lost or it.under_way for it in state.trials.values()):
        return False
    policy = state.policy  # the last that came may have made others superfluous
    return policy is None or not any(_judge(state, policy, [it]) for it in state.trials)


def _close(state: State) -> None:
    """Forget all of an experiment but what stays, and what goes."""
    _forget(state)
    state.policy = state.deletion = None
    state.trials.clear()
    state.closed, state.deleted = True, False


def _delete(state: State) -> None:
    _forget(state)
    for trial in state.trials.values():
        trial.checkpoints.clear()
    state.pinned.clear()
    state.deletion = state.scheduled = None
    state.deleted = state.going = True


def _forget(state: State) -> None:
    """Forget the checkpoints that are there."""
    state.trial_of.clear()
    state.ranking.clear()
    state.held.clear()


def _pin(state: State, event: CheckpointPinned) -> None:
    if state.deleted or state.going or event.checkpoint_id in state.retired:
        return
    wanting = state.pinned.setdefault(event.checkpoint_id, [])
    if event.by not in wanting:
        wanting.append(event.by)


def _let_go(state: State, event: HoldReleased) -> None:
    holders = state.registered.get(event.checkpoint_id, [])
    if event.model_version_id in holders:
        holders.remove(event.model_version_id)
        if not holders:
            del state.registered[event.checkpoint_id]


def _hold(state: State, fact: HoldRequested) -> Payload:
    """Have a checkpoint stay for a version of a model, unless it is gone or about to go."""
    name, whole = fact.checkpoint_id, f"experiment {state.experiment_id}"
    found = state.trials.get(state.trial_of.get(name, ""))
    waits = state.deletion is not None and not state.over
    refused = ""
    if state.deleted or state.going or waits or state.scheduled is not None:
        refused = f"{whole} is deleted, and checkpoint {name} with it"
    elif name in state.retired or (found is None and not state.closed):
        refused = f"{whole} has no checkpoint {name} (any more)"
    elif found is not None and found.checkpoints[name].damaged is not None:
        refused = f"checkpoint {name} of {whole} is damaged"
    if refused:
        return CheckpointHoldRefused(
            experiment_id=state.experiment_id,
            checkpoint_id=name,
            reason=refused,
            request=fact.request,
        )
    return CheckpointHeld(
        experiment_id=state.experiment_id,
        checkpoint_id=name,
        model_version_id=fact.model_version_id,
        area=state.area,
        request=fact.request,
    )


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
    cost = cost_of(value, smaller_is_better=policy.smaller_is_better)
    trial = _trial(state, event.trial_id)
    trial.validated(event.steps_completed, event.run, cost)
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
    state.pinned.pop(checkpoint_id, None)
    if state.closed:
        state.retired[checkpoint_id] = ""
        return
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


def _deletion(state: State, wanted: DeletionRequested | None) -> list[Payload]:
    """Delete the experiment if that is asked for, it has ended, and no other starts from it."""
    if wanted is None or not state.over or state.deleted:
        return []
    if state.registered or any(_is_wanted(state, it, wanted.despite) for it in state.pinned):
        return []
    if wanted.until_ms is None:
        return [_retired_whole(state, wanted.trials)]
    if state.scheduled is not None:
        return []
    return [
        DeletionScheduled(
            experiment_id=state.experiment_id,
            trials=wanted.trials,
            until_ms=wanted.until_ms,
            despite=wanted.despite,
        )
    ]


def _due(state: State, at_ms: int) -> list[Payload]:
    """Delete an experiment whose deletion cannot be taken back any more."""
    found = state.scheduled
    if found is None or at_ms < found.until_ms:
        return []
    return [_retired_whole(state, found.trials)]


def _retired_whole(state: State, trials: int) -> ExperimentRetired:
    return ExperimentRetired(experiment_id=state.experiment_id, trials=trials, area=state.area)


def _pinned(state: State, fact: CheckpointPinned) -> list[Payload]:
    """Answer a pin; take a deletion back where an experiment starts from what would go."""
    refused = _gone(state, fact.checkpoint_id)
    answer = PinAnswered(
        experiment_id=state.experiment_id,
        checkpoint_id=fact.checkpoint_id,
        by=fact.by,
        refused=refused,
    )
    if refused or state.scheduled is None or fact.by in state.scheduled.despite:
        return [answer]
    reason = f"experiment {fact.by} starts from its checkpoint {fact.checkpoint_id}"
    return [ExperimentRestored(experiment_id=state.experiment_id, reason=reason), answer]


def _gone(state: State, checkpoint_id: str) -> str:
    """Return why a checkpoint does not stay, as far as that is known here; empty: it does."""
    whole = f"experiment {state.experiment_id}"
    if state.deleted or state.going:
        return f"{whole} is deleted, and checkpoint {checkpoint_id} with it"
    if checkpoint_id in state.retired or not (state.closed or checkpoint_id in state.trial_of):
        return f"{whole} has no checkpoint {checkpoint_id} (any more)"
    return ""


def _is_wanted(state: State, checkpoint_id: str, despite: Iterable[str]) -> bool:
    """Return whether an experiment starts from a checkpoint that is not among the named ones."""
    return not set(state.pinned.get(checkpoint_id, ())).issubset(despite)


def _requested(state: State, fact: CheckpointDeletionRequested) -> list[Payload]:
    """Retire a checkpoint that a user asked to delete, unless something still depends on it."""
    name = fact.checkpoint_id
    if state.deleted or name in state.registered or _is_wanted(state, name, fact.despite):
        return []
    trial_id = fact.trial_id
    if not state.closed:
        trial_id = state.trial_of.get(name, "")
        trial = state.trials.get(trial_id)
        if trial is None or name in state.held:
            return []
        if not trial.ended and name in restorable(trial.checkpoints):
            return []
    return [_retired(state, trial_id, name, AS_REQUESTED)]


def _superfluous(state: State, fact: RetentionChanged) -> list[Payload]:
    """Retire what the gateway found superfluous of an experiment that has ended."""
    policy = Policy(
        metric="",
        experiment_best=fact.save_experiment_best,
        trial_best=fact.save_trial_best,
        trial_latest=fact.save_trial_latest,
    )
    return [
        _retired(state, trial_id, name, f"not among {policy}")
        for name, trial_id in fact.superfluous.items()
        if not (state.deleted or name in state.pinned or name in state.registered)
    ]


def _retired(state: State, trial_id: str, name: str, reason: str) -> CheckpointRetired:
    return CheckpointRetired(
        experiment_id=state.experiment_id,
        trial_id=trial_id,
        checkpoint_id=name,
        reason=reason,
        area=state.area,
    )


def _judge(state: State, policy: Policy, given: Iterable[str]) -> list[Payload]:
    """Judge checkpoints of trials again, and those that they pushed out of the best."""
    trial_ids = list(given)
    if state.deleted:
        return [
            _retired(state, each, name, "its experiment is deleted")
            for each in trial_ids
            for name in state.trials[each].checkpoints
        ]
    count = policy.experiment_best
    best = {name for _, _, name in state.ranking[:count]}
    if count:
        reach = count + sum(len(state.trials[each].checkpoints) for each in trial_ids)
        trial_ids += [state.trial_of[name] for _, _, name in state.ranking[count:reach]]
    return [
        _retired(state, each, name, reason)
        for each in dict.fromkeys(trial_ids)
        for name, reason in _unwanted(policy, state.trials[each], best)
        if not (name in state.pinned or name in state.registered or name in state.held)
    ]


def _unwanted(policy: Policy, trial: Trial, best: Collection[str]) -> Iterator[tuple[str, str]]:
    steps = None if trial.best is None else trial.best[1]
    return unwanted(policy, trial.checkpoints, best, ended=trial.ended, best_steps=steps)
