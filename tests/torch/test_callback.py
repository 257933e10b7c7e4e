"""Hooks hear what they are there for."""

from collections.abc import Mapping
from typing import Any

import pytest

from rung import torch as rt
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG, finish

from .conftest import Start


class Listener(rt.Callback):
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.batches: list[list[float]] = []
        self.outputs: list[int] = []
        self.heard: list[str] = []

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Hear of a report."""
        self.means.append(avg_metrics["loss"])
        self.batches.append([metrics["loss"] for metrics in batch_metrics])

    def on_validation_start(self) -> None:
        """Hear of a validation."""
        self.heard.append("validation")

    def on_validation_epoch_start(self) -> None:
        """Hear of its first batch."""
        self.heard.append("first batch")

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Hear of its last batch."""
        self.heard.append("last batch")
        self.outputs.append(len(outputs))

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Hear of its end."""
        self.heard.append("end")


class Heard(PlainTrial):
    """Has a listener."""

    def __init__(self, context: rt.TrialContext) -> None:
        super().__init__(context)
        self.listener = Listener()

    def build_callbacks(self) -> Mapping[str, rt.Callback]:
        """Return the listener."""
        return {"listener": self.listener}


def test_a_report_comes_with_the_batches_it_is_made_of(start: Start) -> None:
    """The means are those reported; a report of half a period has half the batches."""
    agent, context = start(config=CONFIG, length=5)
    trial = Heard(context)
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    reported = [values["loss"] for _, values in agent.reports("training")]
    assert trial.listener.means == reported
    assert [len(batches) for batches in trial.listener.batches] == [2, 2, 1]
    means = [sum(batches) / len(batches) for batches in trial.listener.batches]
    assert means == pytest.approx(reported)


def test_validation_batches_are_heard_of(start: Start) -> None:
    """Before the first and after the last of four, with what each returned."""
    agent, context = start(config=CONFIG, length=1)
    trial = Heard(context)
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert trial.listener.heard == ["validation", "first batch", "last batch", "end"]
    assert trial.listener.outputs == [4]


def test_a_whole_set_has_no_validation_batches(start: Start) -> None:
    """With `evaluate_full_dataset` nobody knows what the batches are."""

    class Whole(Heard):
        def evaluate_full_dataset(self, data_loader: Any) -> Mapping[str, Any]:
            return {"loss": 1.0}

    agent, context = start(config=CONFIG, length=1)
    trial = Whole(context)
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert trial.listener.heard == ["validation", "end"]
