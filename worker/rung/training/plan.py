"""Plan: how far a run trains, and how often it reports, validates and checkpoints."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast, get_args

from msgspec import Struct

from rung.core._info import TrialInfo
from rung.events.trial import comparable, is_better
from rung.methods.table import rungs_passed
from rung.training.units import UNITS, Batch, Epoch, InvalidPlan, Record, TrainUnit, from_config

CheckpointPolicy = Literal["best", "all", "none"]
"""After which validations to checkpoint: the trial's best so far, all, or none. A run also
checkpoints at its checkpoint period, and before it exits."""
REPORTING: Final = Batch(100)
_VALIDATION: Final = "min_validation_period"
_CHECKPOINT: Final = "min_checkpoint_period"


class Progress(Struct):
    """The progress of a trial; part of every checkpoint."""

    batches: int = 0
    epochs: int = 0
    batch_in_epoch: int = 0
    records: int = 0
    records_in_epoch: int = 0
    best: float | None = None
    """The best value of the searcher's metric so far."""
    validated_at: tuple[int, int] | None = None
    """Batches and epochs at the last validation; the same point is not validated twice."""
    stop_requested: bool = False
    """Whether the trial asked to end."""

    def moment(self) -> tuple[int, int]:
        """Return batches and epochs, which identify this point of the training."""
        return self.batches, self.epochs


class Plan(Struct, frozen=True, kw_only=True):
    """Lengths and periods of a run; a period of None is never."""

    lengths: list[TrainUnit]
    """The first one that is reached ends the run; empty: a validation at the length does."""
    rungs: list[TrainUnit]
    """Lengths at which the search compares this trial with others before its end."""
    validation_period: TrainUnit | None
    checkpoint_period: TrainUnit | None
    automatic: bool
    """Whether the run chooses its checkpoint period, because none is set."""
    reporting_period: TrainUnit
    policy: CheckpointPolicy
    initial_validation: bool
    metric: str | None
    smaller_is_better: bool

    def complete(self, progress: Progress) -> bool:
        """Return whether the run has reached its length."""
        return any(_position(progress, length) >= length.value for length in self.lengths)

    def validates(self, before: Progress, after: Progress) -> bool:
        """Return whether a validation period ended, or a rung was reached, between two points."""
        return due(self.validation_period, before, after) or any(
            _position(before, rung) < rung.value <= _position(after, rung) for rung in self.rungs
        )

    def validated(self, progress: Progress, metrics: Mapping[str, Any]) -> bool:
        """Note a validation; return whether the policy requires a checkpoint of it."""
        progress.validated_at = progress.moment()
        best = self._is_best(progress, metrics)
        return self.policy == "all" or (self.policy == "best" and best)

    def _is_best(self, progress: Progress, metrics: Mapping[str, Any]) -> bool:
        """Return whether this is the trial's best validation so far, and note the value."""
        if self.metric is None or self.metric not in metrics:
            return True
        value, best = comparable(float(metrics[self.metric])), progress.best
        if value is None:
            return False
        if best is None or is_better(value, best, smaller_is_better=self.smaller_is_better):
            progress.best = value
            return True
        return False


def due(period: TrainUnit | None, before: Progress, after: Progress) -> bool:
    """Return whether a period ended between two points."""
    if period is None:
        return False
    return _position(before, period) // period.value != _position(after, period) // period.value


def make_plan(  # noqa: PLR0913 - the arguments of `Trainer.fit`
    trial: TrialInfo,
    *,
    max_length: TrainUnit | None,
    validation_period: TrainUnit | None,
    checkpoint_period: TrainUnit | None,
    reporting_period: TrainUnit | None,
    checkpoint_policy: str | None,
    step_zero_validation: bool | None,
    each_epoch: bool = True,
) -> Plan:
    """Return the plan of the arguments; the experiment file's values where they are None.

    Args:
        trial: with its experiment's configuration.
        max_length: and the others: as of `Trainer.fit`.
        validation_period: None: that of the experiment file.
        checkpoint_period: None: that of the experiment file.
        reporting_period: None: that of the experiment file.
        checkpoint_policy: None: that of the experiment file.
        step_zero_validation: None: that of the experiment file.
        each_epoch: whether to validate after each epoch if the experiment file has no
            `min_validation_period`; False: the framework's loop decides.

    Raises:
        InvalidPlan: there is no length, or a value is not a valid length or policy.
    """
    config = trial.config
    searcher: dict[str, Any] = config.get("searcher") or {}
    lengths = [max_length] if max_length is not None else []
    rungs: list[TrainUnit] = []
    unit = UNITS.get(trial.time_metric)
    if trial.length is not None and unit is not None:
        lengths.append(unit(trial.length))
        rungs = [unit(length) for length in rungs_passed(searcher)]
    if not lengths and trial.length is None:
        raise InvalidPlan(
            "there is no length to train for: give fit(max_length=Epoch(10)), or "
            "searcher.time_metric and searcher.max_time in the experiment file"
        )
    validation = validation_period or _period(config, _VALIDATION)
    if validation is None and (unit is None or (each_epoch and _unset(config, _VALIDATION))):
        validation = Epoch(1)
    checkpoint = checkpoint_period or _period(config, _CHECKPOINT)
    plan = Plan(
        lengths=lengths,
        rungs=rungs,
        validation_period=validation,
        checkpoint_period=checkpoint,
        automatic=checkpoint is None and _unset(config, _CHECKPOINT),
        reporting_period=reporting_period or _period(config, "scheduling_unit") or REPORTING,
        policy=_policy(checkpoint_policy or config.get("checkpoint_policy") or "best"),
        initial_validation=bool(
            config.get("perform_initial_validation")
            if step_zero_validation is None
            else step_zero_validation
        ),
        metric=searcher.get("metric"),
        smaller_is_better=searcher.get("smaller_is_better", True) is not False,
    )
    for each in (*lengths, validation, plan.checkpoint_period, plan.reporting_period):
        if each is not None and (type(each) is TrainUnit or each.value < 1):
            raise InvalidPlan(f"{each}: must be a Batch, Epoch or Record of at least 1")
    return plan


def _position(progress: Progress, unit: TrainUnit) -> int:
    match unit:
        case Epoch():
            return progress.epochs
        case Record():
            return progress.records
        case _:
            return progress.batches


def _period(config: dict[str, Any], field: str) -> TrainUnit | None:
    return from_config(config.get(field), field)


def _unset(config: dict[str, Any], field: str) -> bool:
    """Return whether the experiment file does not set a period; 0 is set, and means never."""
    return config.get(field) is None


def _policy(word: str) -> CheckpointPolicy:
    if word not in get_args(CheckpointPolicy):
        raise InvalidPlan(f"checkpoint_policy: must be best, all or none, not {word!r}")
    return cast("CheckpointPolicy", word)
