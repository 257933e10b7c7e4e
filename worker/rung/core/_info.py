"""Info: the run of a script, its trial, and its length."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from rung.events.trial import RunSpec
from rung.secrets.values import SecretValue, restored


class TrialInfo(Struct, frozen=True, kw_only=True):
    """The trial that this process trains."""

    trial_id: str
    experiment_id: str
    index: int
    run: int
    """Counted from 1; after a promotion, a restart or a pause the trial goes on in a new run."""
    seed: int
    hparams: dict[str, Any]
    config: dict[str, Any]
    """The experiment's complete configuration without its hyperparameters."""
    length: int | None
    """Train until the time metric reaches this, counted from the trial's beginning."""
    time_metric: str

    @property
    def trial_seed(self) -> int:
        """The seed, by Determined's name."""
        return self.seed


class Info(Struct, frozen=True, kw_only=True):
    """The run, its agent and slots, and its trial."""

    managed: bool
    """False where the script was started by hand, not by Rung."""
    allocation_id: str
    agent_id: str
    slot_ids: list[int]
    rank: int
    trial: TrialInfo
    latest_checkpoint: str | None = None
    """Id of the newest checkpoint to resume from; neither downloaded nor verified.
    `checkpoint.download_latest` returns the newest one that is intact."""
    container_rank: int = 0
    """Rank of this agent among those of the run."""

    @property
    def user_data(self) -> dict[str, Any]:
        """The experiment file's section `data`."""
        return dict(self.trial.config.get("data") or {})


def trial_info(spec: RunSpec, secrets: Sequence[SecretValue] = ()) -> TrialInfo:
    """Return the trial of a run's specification; its configuration has the secrets."""
    return TrialInfo(
        trial_id=spec.trial_id,
        experiment_id=spec.experiment_id,
        index=spec.trial_index,
        run=spec.run,
        seed=spec.seed,
        hparams=spec.hparams,
        config=restored(spec.config, secrets) if secrets else spec.config,
        length=spec.length,
        time_metric=spec.time_metric,
    )
