"""How a run trains: how far, and what it does how often."""

from typing import Any, Final, Literal, cast, get_args

from msgspec import Struct

from rung.core.info import TrialInfo
from rung.methods.table import rungs_passed
from rung.torch.unit import UNITS, Batch, Epoch, InvalidPlan, Record, TrainUnit, from_config

CheckpointPolicy = Literal["best", "all", "none"]
"""Whether a validation is followed by a checkpoint: where it is the trial's best so far, always,
never. A run also checkpoints when its period says so, and before it leaves."""
REPORTING: Final = Batch(100)


class Progress(Struct):
    """How far a trial is; part of every checkpoint."""

    batches: int = 0
    epochs: int = 0
    batch_in_epoch: int = 0
    records: int = 0
    records_in_epoch: int = 0
    best: float | None = None
    """The best value of the searcher's metric so far."""
    validated_at: tuple[int, int] | None = None
    """Batches and epochs at the last validation; the same moment is not validated twice."""
    stop_requested: bool = False
    """Whether the trial asked to end."""

    def moment(self) -> tuple[int, int]:
        """Return what tells this moment from any other."""
        return self.batches, self.epochs


class Plan(Struct, frozen=True, kw_only=True):
    """What a run does; None stands for never."""

    lengths: list[TrainUnit]
    """The first one that is reached ends the run; empty: a validation does."""
    rungs: list[TrainUnit]
    """Where the search compares this trial with others on its way."""
    validation_period: TrainUnit | None
    checkpoint_period: TrainUnit | None
    reporting_period: TrainUnit
    policy: CheckpointPolicy
    initial_validation: bool
    metric: str | None
    smaller_is_better: bool

    def complete(self, progress: Progress) -> bool:
        """Return whether the run is as long as it should be."""
        return any(_position(progress, length) >= length.value for length in self.lengths)

    def validates(self, before: Progress, after: Progress) -> bool:
        """Return whether a validation period ended, or a rung was reached, between two moments."""
        return due(self.validation_period, before, after) or any(
            _position(before, rung) < rung.value <= _position(after, rung) for rung in self.rungs
        )


def due(period: TrainUnit | None, before: Progress, after: Progress) -> bool:
    """Return whether a period ended between two moments."""
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
) -> Plan:
    """Return the plan that the arguments and, where they are silent, the experiment file make.

    Raises:
        InvalidPlan: nothing says how long to train, or something is no length or policy.
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
            "nothing says how long to train: give fit(max_length=Epoch(10)), or "
            "searcher.time_metric and searcher.max_time in the experiment file"
        )
    validation = validation_period or _period(config, "min_validation_period")
    if validation is None and unit is None:
        validation = Epoch(1)
    plan = Plan(
        lengths=lengths,
        rungs=rungs,
        validation_period=validation,
        checkpoint_period=checkpoint_period or _period(config, "min_checkpoint_period"),
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


def _policy(word: str) -> CheckpointPolicy:
    if word not in get_args(CheckpointPolicy):
        raise InvalidPlan(f"checkpoint_policy: must be best, all or none, not {word!r}")
    return cast("CheckpointPolicy", word)
