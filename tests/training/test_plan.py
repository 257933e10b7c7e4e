"""From the experiment file and the arguments of fit to a plan."""

from typing import Any

import msgspec
import pytest

from rung.core._info import trial_info
from rung.torch import Batch, Epoch, InvalidPlan, Record
from rung.training.plan import Plan, Progress, due, make_plan
from rung.training.units import TrainUnit, from_config
from support.agent_end import run_spec

SILENT: dict[str, Any] = dict.fromkeys(
    [
        "max_length",
        "validation_period",
        "checkpoint_period",
        "reporting_period",
        "checkpoint_policy",
        "step_zero_validation",
    ]
)


def plan(arguments: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """Return the plan for a run with the given specification."""
    return make_plan(trial_info(run_spec(**changes)), **(SILENT | (arguments or {})))


def test_nothing_needs_to_be_set() -> None:
    """Reports every 100 batches, validations each epoch, checkpoints of the best and by cost."""
    made = plan(length=7, config={})
    assert made.lengths == [Batch(7)]
    assert made.reporting_period == Batch(100)
    assert (made.validation_period, made.checkpoint_period) == (Epoch(1), None)
    assert made.automatic
    assert (made.policy, made.initial_validation) == ("best", False)


@pytest.mark.parametrize("zero", [0, {"batches": 0}, {"epochs": 0}])
def test_zero_means_never(zero: Any) -> None:
    """A period of 0 is none, and none is chosen."""
    periods = {"min_validation_period": zero, "min_checkpoint_period": zero}
    made = plan(length=7, config=periods)
    assert made.validation_period is None
    assert made.checkpoint_period is None
    assert not made.automatic


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        ({"checkpoint_period": Batch(7)}, {}),
        ({"checkpoint_period": Batch(7)}, {"min_checkpoint_period": {"batches": 0}}),
        ({}, {"min_checkpoint_period": {"batches": 7}}),
    ],
)
def test_a_period_that_is_set_holds(arguments: dict[str, Any], config: dict[str, Any]) -> None:
    """By the script or by the experiment file; the clock has no say then."""
    made = plan(arguments, length=9, config=config)
    assert (made.checkpoint_period, made.automatic) == (Batch(7), False)


def test_a_loop_with_a_rule_of_its_own_validates_by_that() -> None:
    """Unless the experiment file has a period, or the script alone knows what time is."""
    own = {"each_epoch": False}
    assert plan(own, length=9, config={}).validation_period is None
    periods = {"min_validation_period": {"batches": 4}}
    assert plan(own, length=9, config=periods).validation_period == Batch(4)
    assert plan(own, length=9, time_metric="tokens", config={}).validation_period == Epoch(1)


@pytest.mark.parametrize("value", ["often", {"weeks": 1}, {"batches": 1, "epochs": 1}])
def test_what_is_no_period_is_refused(value: Any) -> None:
    """The message names the field and shows a right one."""
    with pytest.raises(InvalidPlan, match=r"min_checkpoint_period: must be like \{batches: 100"):
        plan(length=1, config={"min_checkpoint_period": value})


@pytest.mark.parametrize("unit", [Batch(0), TrainUnit(3), Epoch(-1)])
def test_periods_are_at_least_one(unit: TrainUnit) -> None:
    """A period of nothing would never end."""
    with pytest.raises(InvalidPlan, match="at least 1"):
        plan({"checkpoint_period": unit}, length=1)


def test_policies_are_three() -> None:
    """Another word is refused."""
    with pytest.raises(InvalidPlan, match="best, all or none"):
        plan({"checkpoint_policy": "some"}, length=1)


def test_a_number_alone_counts_batches() -> None:
    """As `scheduling_unit` does."""
    assert from_config(50, "scheduling_unit") == Batch(50)


def test_a_period_is_due_whenever_it_was_crossed() -> None:
    """Records may jump over a multiple; epochs are due at their end only."""
    before, after = Progress(batches=1, records=9), Progress(batches=2, records=21)
    assert due(Record(10), before, after)
    assert not due(Record(25), before, after)
    assert not due(Epoch(1), before, after)
    assert due(Epoch(2), Progress(epochs=1), Progress(epochs=2))
    assert not due(None, before, after)


ASHA: dict[str, Any] = {"name": "async_halving", "num_rungs": 3, "max_trials": 9, "max_time": 16}


@pytest.mark.parametrize("unit", ["batches", "epochs", "records", "steps"])
def test_a_rung_is_validated_once_it_is_reached(unit: str) -> None:
    """Whatever the trainer counts; a run that goes on from there has it behind itself."""
    config = {"searcher": ASHA, "min_validation_period": {"batches": 0}}
    made = plan(length=16, time_metric=unit, config=config)

    def moment(position: int) -> Progress:
        return msgspec.convert({unit.replace("steps", "batches"): position}, Progress)

    crossed = [n for n in range(1, 20) if made.validates(moment(n - 1), moment(n))]
    assert crossed == [1, 4, 16]
    assert made.validates(moment(2), moment(9))
    assert not made.validates(moment(4), moment(9))


@pytest.mark.parametrize("changes", [{"time_metric": "tokens", "length": 16}, {"length": None}])
def test_a_rung_that_the_trainer_cannot_count_is_left_to_periods(changes: dict[str, Any]) -> None:
    """A metric of the script's is validated each epoch, as before; without a length, none is."""
    made = plan({"max_length": Epoch(3)}, config={"searcher": ASHA}, **changes)
    assert made.rungs == []


def test_progress_of_an_older_checkpoint_asks_for_nothing() -> None:
    """Checkpoints that do not say whether the trial asked to end are read."""
    assert msgspec.convert({"batches": 3}, Progress) == Progress(batches=3, stop_requested=False)


@pytest.mark.parametrize("first", ["inf", "-inf", "nan"])
@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_a_value_that_is_not_finite_is_never_the_best(first: str, smaller_is_better: bool) -> None:  # noqa: FBT001 - parametrized
    """The best finite value is checkpointed though an infinite one came before it."""
    searcher = {"metric": "psnr", "smaller_is_better": smaller_is_better}
    made = plan(length=7, config={"searcher": searcher})
    progress = Progress()
    assert not made.validated(progress, {"psnr": float(first)})
    assert made.validated(progress, {"psnr": 20.0})
    assert made.validated(progress, {"psnr": 10.0 if smaller_is_better else 30.0})
    assert not made.validated(progress, {"psnr": float(first)})
