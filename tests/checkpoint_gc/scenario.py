"""Scenarios of one experiment: facts in few words, and the collector folded as by its host."""

import msgspec

from rung.checkpoint_gc import CheckpointGC
from rung.checkpoint_gc.state import State
from rung.events import Payload
from rung.events.allocation import AllocationLost
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointDeletionRequested,
    CheckpointPinned,
    CheckpointReleased,
    CheckpointRetired,
    CheckpointStored,
    PinAnswered,
)
from rung.events.experiment import (
    DeletionDue,
    DeletionRequested,
    ExperimentDeleted,
    ExperimentEnded,
    ExperimentSubmitted,
    RestorationRequested,
    RetentionChanged,
)
from rung.events.trial import (
    MetricValue,
    TrialClosed,
    TrialExited,
    TrialValidated,
)
from support.runtime.bare import Bare

EXPERIMENT = "k3f9x2ma"


def submitted(
    experiment_best: int = 0,
    trial_best: int = 1,
    trial_latest: int = 1,
    *,
    smaller_is_better: bool = True,
) -> ExperimentSubmitted:
    """An experiment with this policy, whose searcher looks at `loss`."""
    return ExperimentSubmitted(
        experiment_id=EXPERIMENT,
        config={
            "searcher": {
                "name": "random",
                "metric": "loss",
                "smaller_is_better": smaller_is_better,
            },
            "checkpoint_storage": {
                "save_experiment_best": experiment_best,
                "save_trial_best": trial_best,
                "save_trial_latest": trial_latest,
            },
            "resources": {"slots_per_trial": 1},
        },
        source="",
        code_digest=None,
    )


def trial_id(trial: int) -> str:
    """The id of a trial by its index."""
    return f"{EXPERIMENT}.{trial}"


def stored(name: str, steps: int, trial: int = 0, run: int = 1) -> CheckpointStored:
    """A checkpoint is complete."""
    return CheckpointStored(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(trial),
        run=run,
        checkpoint_id=name,
        steps_completed=steps,
        size_bytes=10,
        files=1,
        digest="00",
    )


def validated(
    steps: int, loss: MetricValue | None, trial: int = 0, run: int = 1
) -> TrialValidated:
    """A run reports the searcher's metric, or (None) another one."""
    return TrialValidated(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(trial),
        run=run,
        steps_completed=steps,
        metrics={"accuracy": 0.5} if loss is None else {"loss": loss, "accuracy": 0.5},
    )


def damaged(name: str, trial: int = 0, run: int = 2) -> CheckpointDamaged:
    """A run found a checkpoint damaged."""
    return CheckpointDamaged(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(trial),
        run=run,
        checkpoint_id=name,
        reason="model.pt is missing",
    )


def released(name: str, trial: int = 0) -> CheckpointReleased:
    """The search no longer starts from a checkpoint."""
    return CheckpointReleased(
        experiment_id=EXPERIMENT, trial_id=trial_id(trial), checkpoint_id=name
    )


def pinned(name: str) -> CheckpointPinned:
    """Another experiment starts from a checkpoint."""
    return CheckpointPinned(experiment_id=EXPERIMENT, checkpoint_id=name, by="p0000000")


def answered(name: str, refused: str = "") -> PinAnswered:
    """A pin is decided."""
    return PinAnswered(
        experiment_id=EXPERIMENT, checkpoint_id=name, by="p0000000", refused=refused
    )


def deleted(name: str, trial: int = 0) -> CheckpointDeleted:
    """A checkpoint's files are gone."""
    return CheckpointDeleted(
        experiment_id=EXPERIMENT, trial_id=trial_id(trial), checkpoint_id=name
    )


def deleted_whole() -> ExperimentDeleted:
    """All files of the experiment are gone."""
    return ExperimentDeleted(experiment_id=EXPERIMENT)


def unwanted(name: str, trial: int = 0, *despite: str) -> CheckpointDeletionRequested:
    """A user asks to delete a checkpoint."""
    return CheckpointDeletionRequested(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(trial),
        checkpoint_id=name,
        despite=list(despite),
    )


def retention(
    experiment_best: int = 0, trial_best: int = 1, trial_latest: int = 1, **superfluous: str
) -> RetentionChanged:
    """A user changes what is kept."""
    return RetentionChanged(
        experiment_id=EXPERIMENT,
        save_experiment_best=experiment_best,
        save_trial_best=trial_best,
        save_trial_latest=trial_latest,
        superfluous=superfluous,
    )


def unwanted_whole(
    *despite: str, trials: int = 1, until_ms: int | None = None
) -> DeletionRequested:
    """A user asks to delete the experiment, perhaps so that it can be taken back for a while."""
    return DeletionRequested(
        experiment_id=EXPERIMENT, trials=trials, despite=list(despite), until_ms=until_ms
    )


def wanted_back() -> RestorationRequested:
    """A user asks for a deleted experiment back."""
    return RestorationRequested(experiment_id=EXPERIMENT)


def so_late(at_ms: int) -> DeletionDue:
    """It is so late."""
    return DeletionDue(experiment_id=EXPERIMENT, at_ms=at_ms)


def exited(run: int = 1, trial: int = 0, *under_way: str) -> TrialExited:
    """A run's processes are gone."""
    return TrialExited(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(trial),
        run=run,
        agent_id="a",
        outcome="failed",
        exit_code=1,
        signal=None,
        message="",
        under_way=list(under_way),
    )


def run_lost(run: int = 1, trial: int = 0) -> AllocationLost:
    """A run is lost with its agent."""
    return AllocationLost(
        pool="default",
        allocation_id=f"{trial_id(trial)}.{run}",
        experiment_id=EXPERIMENT,
        trial_id=trial_id(trial),
        run=run,
        reason="",
    )


def ended(trial: int = 0) -> TrialClosed:
    """A trial will never train again."""
    return TrialClosed(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(trial),
        state="completed",
        reason="done",
        restarts=0,
    )


def over() -> ExperimentEnded:
    """The experiment has ended."""
    return ExperimentEnded(experiment_id=EXPERIMENT, state="completed", reason="")


class Experiment:
    """One experiment under the collector."""

    def __init__(self) -> None:
        self.collector = Bare(CheckpointGC())
        self.state: State = self.collector.initial(EXPERIMENT)
        self.history: list[Payload] = []
        """Facts, each followed by its decisions."""

    def tell(self, *facts: Payload) -> list[CheckpointRetired]:
        """Fold facts as the host does and return the decisions."""
        return [decision for fact in facts for decision in self._fold(fact)]

    def then(self, *facts: Payload) -> list[str]:
        """Fold facts and return which checkpoints are retired."""
        return [decision.checkpoint_id for decision in self.tell(*facts)]

    def kept(self) -> list[str]:
        """Return the checkpoints that are kept."""
        return sorted(self.state.trial_of)

    def restart(self) -> None:
        """Go on from a snapshot, as after a restart of the service."""
        self.state = msgspec.json.decode(msgspec.json.encode(self.state), type=State)

    def _fold(self, fact: Payload) -> list[CheckpointRetired]:
        self.collector.evolve(self.state, fact)
        decisions = self.collector.decide(self.state, fact)
        for decision in decisions:
            self.collector.evolve(self.state, decision)
        self.history += [fact, *decisions]
        return [decision for decision in decisions if isinstance(decision, CheckpointRetired)]
