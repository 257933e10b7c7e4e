"""The add-on for exact resuming with Lightning: its private interfaces, and its parts."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from rung.core import DistributedContext
from rung.training.introspection.seams import AddOn
from support.framework_trials import needs
from support.ranked import on_agents, ranked
from support.seams import assert_bounded, assert_refused_without_each

pytestmark = [needs("lightning"), pytest.mark.e2e, pytest.mark.versions]


def _add_on() -> AddOn:
    # Not at the top: one process cannot hold TensorFlow and what torch compiles with.
    found: AddOn = importlib.import_module("rung.lightning.exact").ADD_ON
    return found


def test_each_private_interface_that_is_missing_is_one_sentence() -> None:
    """Said at start, before anything is trained."""
    assert_refused_without_each(_add_on())


def test_a_version_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older or newer; and the extras ask for those that were."""
    assert_bounded(_add_on(), monkeypatch)


def _part(name: str) -> Any:
    return importlib.import_module(f"rung.lightning.{name}")


def test_the_means_of_an_epoch_are_those_of_all_ranks() -> None:
    """By records; sums, extremes and what is logged at the epoch's end, too."""
    torch: Any = importlib.import_module("torch")
    logs = [(2.0, 3), (5.0, 1)]

    def settle(ranks: DistributedContext) -> dict[str, float]:
        results = _part("exact.metric_sync").SharedResults(ranks, training=False)
        value, records = logs[ranks.rank]
        for name, reduce in (("mean", "mean"), ("sum", "sum"), ("max", "max")):
            results.log("step", name, torch.tensor(value), reduce_fx=reduce, batch_size=records)
        found = results.metrics(on_step=False)["callback"]
        return {name: float(each) for name, each in found.items()}

    expected = {"mean": (2.0 * 3 + 5.0) / 4, "sum": 7.0, "max": 5.0}
    assert ranked(on_agents(2), settle) == [expected, expected]


def test_what_is_logged_again_counts_as_logged() -> None:
    """By other tensors, not by their values; the loss of the step is among them."""
    metrics = _part("step_metrics")
    kept, trainer = object(), SimpleNamespace(callback_metrics={"old": 1.5, "new": [1]})
    trainer.callback_metrics["kept"] = kept
    since = metrics.LoggedSince()
    since.begin(trainer)
    trainer.callback_metrics["new"] = [1]
    assert since.found(trainer) == {"new": [1]}
    assert metrics.with_loss({"a": 1}, {"loss": 2}) == {"a": 1, "loss": 2}


def test_validations_of_several_ranks_weigh_by_records() -> None:
    """One that saw nothing does not count."""
    logs = [({"loss": 1.0}, 3), ({"loss": 5.0}, 1), ({"loss": 9.0}, 0)]

    def mean(ranks: DistributedContext) -> Any:
        return _part("step_metrics").mean_of_ranks(ranks, *logs[ranks.rank])

    assert ranked(on_agents(3), mean) == [{"loss": 2.0}] * 3


def test_a_validation_that_is_demanded_follows_one_batch() -> None:
    """And the settings are the script's again."""
    trainer = SimpleNamespace(
        enable_validation=True, check_val_every_n_epoch=2, val_check_batch=6, current_epoch=0
    )
    validations = _part("epoch_validations").EpochValidations(trainer)
    assert not validations.follows(3)
    validations.demand(3)
    assert [validations.follows(each) for each in (2, 3, 4)] == [False, True, False]
    validations.give_back()
    assert (trainer.check_val_every_n_epoch, trainer.val_check_batch) == (2, 6)
