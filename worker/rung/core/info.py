"""What a script may know about the run it is."""

from typing import Any

from msgspec import Struct

from rung.events.trial import RunSpec


class TrialInfo(Struct, frozen=True, kw_only=True):
    """The trial that this process trains."""

    trial_id: str
    experiment_id: str
    index: int
    run: int
    """Counted from 1; a promotion, a restart, a pause end one run and begin another."""
    seed: int
    hparams: dict[str, Any]
    config: dict[str, Any]
    """The experiment's complete configuration without its hyperparameters."""
    length: int | None
    """Train until the time metric reaches this, counted from the trial's beginning."""
    time_metric: str


class Info(Struct, frozen=True, kw_only=True):
    """The run, where it takes place, and what it is to train."""

    managed: bool
    """False where the script was started by hand, not by Rung."""
    allocation_id: str
    agent_id: str
    slot_ids: list[int]
    rank: int
    trial: TrialInfo


def trial_info(spec: RunSpec) -> TrialInfo:
    """Return what a specification says about its trial."""
    return TrialInfo(
        trial_id=spec.trial_id,
        experiment_id=spec.experiment_id,
        index=spec.trial_index,
        run=spec.run,
        seed=spec.seed,
        hparams=spec.hparams,
        config=spec.config,
        length=spec.length,
        time_metric=spec.time_metric,
    )
