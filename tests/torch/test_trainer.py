"""The loop: when it reports, validates, checkpoints and leaves."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from rung import torch as rt
from rung.core.protocol import Stored
from training.plain import INPUTS, PlainTrial
from training.story import CONFIG, finish

from .conftest import Start


@pytest.mark.parametrize(
    ("unit", "length", "end"), [("batches", 5, 5), ("epochs", 1, 6), ("records", 9, 3)]
)
def test_a_run_ends_at_its_length(start: Start, unit: str, length: int, end: int) -> None:
    """It validates, checkpoints and leaves, in each unit; records round up to a batch."""
    agent, context = start(config=CONFIG, time_metric=unit, length=length)
    rt.Trainer(PlainTrial(context), context).fit()
    assert finish(agent, context)[-2:] == [f"v{end}", f"s{end}"]
    [(_, metrics)] = agent.reports("validation")
    assert metrics["batches"] == end
    assert metrics["epochs"] == end / 6
    assert metrics["records"] == 4 * end


def test_periods_come_from_the_experiment_file(start: Start) -> None:
    """Reports every two batches, validations every epoch, checkpoints every 20 records."""
    config = CONFIG | {
        "min_validation_period": {"epochs": 1},
        "min_checkpoint_period": {"records": 20},
        "perform_initial_validation": True,
    }
    agent, context = start(config=config, length=9)
    rt.Trainer(PlainTrial(context), context).fit()
    expected = "v0 t2 t4 s5 t6 v6 t8 t9 v9 s9"
    assert finish(agent, context) == expected.split()


def test_arguments_come_before_the_experiment_file(start: Start) -> None:
    """What the script gives to fit holds; the shorter of two lengths ends the run."""
    agent, context = start(config=CONFIG, length=9)
    rt.Trainer(PlainTrial(context), context).fit(
        max_length=rt.Epoch(1),
        validation_period=rt.Batch(3),
        reporting_period=rt.Batch(4),
        checkpoint_policy="all",
        step_zero_validation=True,
    )
    assert finish(agent, context) == ["v0", "t3", "v3", "s3", "t4", "t6", "v6", "s6"]


def test_the_best_validations_are_kept(start: Start) -> None:
    """With the policy `best`, a checkpoint follows each validation that beats all before."""

    class Scripted(PlainTrial):
        losses = iter([5.0, 6.0, math.nan, 4.0, 4.0, 9.0])

        def evaluate_full_dataset(self, data_loader: DataLoader[Any]) -> Mapping[str, Any]:
            return {"loss": next(self.losses)}

    agent, context = start(config=CONFIG | {"checkpoint_policy": "best"}, length=6)
    rt.Trainer(Scripted(context), context).fit(
        validation_period=rt.Batch(1), reporting_period=rt.Batch(100)
    )
    said = [word for word in finish(agent, context) if word[0] == "s"]
    assert said == ["s1", "s4", "s6"]
    assert agent.reports("validation")[2][1]["loss"] == "NaN"


def test_asked_to_leave_it_checkpoints_and_leaves(start: Start) -> None:
    """No validation, no report of half a period; the preemption is acknowledged."""
    agent, context = start(config=CONFIG, length=1000)

    class Asked(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                agent.preempt()
                while not context.core.preempt.should_preempt(auto_ack=False):
                    pass
            return super().train_batch(batch, epoch_idx, batch_idx)

    rt.Trainer(Asked(context), context).fit()
    assert finish(agent, context) == ["t2", "ack", "s3"]


def test_a_trial_may_end_itself(start: Start) -> None:
    """It checkpoints and leaves without acknowledging anything: it has finished."""
    agent, context = start(config=CONFIG, length=1000)

    class Enough(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.set_stop_requested(batch_idx == 2)
            return super().train_batch(batch, epoch_idx, batch_idx)

    rt.Trainer(Enough(context), context).fit()
    assert finish(agent, context) == ["t2", "s3"]


class Satisfied(PlainTrial):
    """Asks to end after the validation at step 4."""

    def evaluate_full_dataset(self, data_loader: DataLoader[Any]) -> Mapping[str, Any]:
        """Return any loss, and ask."""
        self.context.set_stop_requested(self.context.current_train_batch() == 4)
        return {"loss": 1.0}


ASHA = CONFIG | {
    "searcher": {
        "name": "adaptive_asha",
        "metric": "loss",
        "max_time": 16,
        "max_trials": 48,
        "divisor": 4.0,
    },
    "scheduling_unit": 100,
}
"""Its rungs are 1, 4 and 16."""


@pytest.mark.parametrize(
    ("period", "expected"),
    [({}, [1, 4, 16]), ({"min_validation_period": {"batches": 2}}, [1, *range(2, 17, 2)])],
)
def test_a_trial_validates_at_the_rungs_of_its_search(
    start: Start, period: dict[str, Any], expected: list[int]
) -> None:
    """Without a period there and nowhere else; with one, once where both fall together."""
    agent, context = start(config=ASHA | period, length=16)
    rt.Trainer(PlainTrial(context), context).fit()
    finish(agent, context)
    assert [step for step, _ in agent.reports("validation")] == expected


def test_rungs_in_epochs(start: Start) -> None:
    """A rung in epochs is validated at the epoch's last batch."""
    agent, context = start(config=ASHA, time_metric="epochs", length=16)
    rt.Trainer(PlainTrial(context), context).fit(max_length=rt.Epoch(5))
    finish(agent, context)
    validated = [metrics["epochs"] for _, metrics in agent.reports("validation")]
    assert validated == [1, 4, 5]


@pytest.mark.parametrize(("step", "before", "after"), [(3, [1], [4, 16]), (4, [1, 4], [16])])
def test_no_rung_is_left_out_or_repeated_by_a_resume(
    start: Start, tmp_path: Path, step: int, before: list[int], after: list[int]
) -> None:
    """Whether the run before left right before the rung or right at it."""
    agent, context = start(tmp_path / "first", config=ASHA, length=16)

    class Asked(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == step - 1:
                agent.preempt()
                while not context.core.preempt.should_preempt(auto_ack=False):
                    pass
            return super().train_batch(batch, epoch_idx, batch_idx)

    rt.Trainer(Asked(context), context).fit()
    assert finish(agent, context)[-1] == f"s{step}"
    assert [step for step, _ in agent.reports("validation")] == before
    stored = [message.checkpoint_id for message in agent.of(Stored)][::-1]
    agent.close()
    agent.path.unlink()
    again, context = start(tmp_path / "first", config=ASHA, length=16, restore=stored)
    rt.Trainer(PlainTrial(context), context).fit()
    finish(again, context)
    assert [step for step, _ in again.reports("validation")] == after


@pytest.mark.parametrize("policy", ["none", "all"])
def test_a_trial_that_ends_itself_in_a_validation_trains_no_more(
    start: Start, tmp_path: Path, policy: str
) -> None:
    """It leaves at once; and a run that was killed on its way out, before its first batch."""
    config = CONFIG | {"min_validation_period": {"batches": 2}, "checkpoint_policy": policy}
    agent, context = start(tmp_path / "first", config=config, length=1000)
    rt.Trainer(Satisfied(context), context).fit()
    assert finish(agent, context)[-3:] == ["t4", "v4", "s4"]
    stored = [message.checkpoint_id for message in agent.of(Stored)][::-1]
    agent.close()
    agent.path.unlink()
    again, context = start(tmp_path / "first", config=config, length=1000, restore=stored)
    rt.Trainer(PlainTrial(context), context).fit()
    assert context.get_stop_requested()
    assert finish(again, context) == ["r4"]


def test_a_length_in_a_metric_of_the_scripts(start: Start) -> None:
    """Where the search counts something else, each epoch is validated until it is reached."""

    class Tokens(PlainTrial):
        def evaluate_full_dataset(self, data_loader: DataLoader[Any]) -> Mapping[str, Any]:
            return {"loss": 1.0, "tokens": 100 * self.context.current_train_epoch()}

    agent, context = start(config=CONFIG, time_metric="tokens", length=150)
    rt.Trainer(Tokens(context), context).fit(reporting_period=rt.Epoch(5))
    assert finish(agent, context) == ["t6", "v6", "t12", "v12", "s12"]


class Stream(IterableDataset[torch.Tensor]):
    """Ten samples, without a length."""

    def __iter__(self) -> Any:
        return iter(INPUTS[:10])


class Streaming(PlainTrial):
    """Trains on a stream."""

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return three batches of four, four and two."""
        return DataLoader(Stream(), batch_size=4)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Fit a line."""
        return super().train_batch([batch], epoch_idx, batch_idx)


def test_a_stream_ends_its_epochs_itself(start: Start) -> None:
    """Without a length the end of the data ends the epoch; its validation is not lost."""
    agent, context = start(config=CONFIG, time_metric="epochs", length=2)
    rt.Trainer(Streaming(context), context).fit(
        validation_period=rt.Epoch(1), checkpoint_period=rt.Batch(3)
    )
    assert finish(agent, context) == ["t2", "t3", "v3", "s3", "t4", "t6", "v6", "s6", "s6"]
    assert [metrics["epochs"] for _, metrics in agent.reports("validation")] == [1, 2]


def test_an_empty_data_set_is_an_error(start: Start) -> None:
    """Nothing to train on is said, not waited for."""

    class Empty(Streaming):
        def build_training_data_loader(self) -> DataLoader[Any]:
            class Nothing(Stream):
                def __iter__(self) -> Any:
                    return iter(())

            return DataLoader(Nothing(), batch_size=4)

    _, context = start(config=CONFIG, length=2)
    with pytest.raises(RuntimeError, match="no batches"):
        rt.Trainer(Empty(context), context).fit()


def test_nothing_says_how_long(start: Start) -> None:
    """Without any length the error says where to give one."""
    _, context = start(config=CONFIG)
    with pytest.raises(rt.InvalidPlan, match=r"searcher\.max_time"):
        rt.Trainer(PlainTrial(context), context).fit()


def test_hooks_are_called_in_order(start: Start) -> None:
    """Each callback hears of startup, epochs, validations, checkpoints and the end."""
    heard: list[str] = []

    class Listener(rt.Callback):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_"):
                heard.append(name)
            return super().__getattribute__(name)

        def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
            assert (Path(checkpoint_dir) / "model.pt").is_file()

    class Heard(PlainTrial):
        def build_callbacks(self) -> Mapping[str, rt.Callback]:
            return {"listener": Listener()}

    agent, context = start(config=CONFIG, time_metric="epochs", length=1)
    rt.Trainer(Heard(context), context).fit()
    finish(agent, context)
    assert heard == [
        "on_trial_startup",
        "on_training_start",
        "on_training_epoch_start",
        "on_training_epoch_end",
        "on_validation_start",
        "on_validation_epoch_start",
        "on_validation_epoch_end",
        "on_validation_end",
        "on_checkpoint_save_start",
        "on_checkpoint_write_end",
        "on_checkpoint_upload_end",
        "on_trial_shutdown",
    ]
