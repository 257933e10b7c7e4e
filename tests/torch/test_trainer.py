"""The loop: when it reports, validates, checkpoints and leaves."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch
from torch.utils.data import DataLoader, IterableDataset

import rung
from rung import torch as rt
from rung.core.ipc.protocol import Stored
from rung.training import checkpoint_schedule
from support.trials.plain import INPUTS, PlainTrial
from support.trials.story import CONFIG, finish

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


def test_the_context_is_found(start: Start) -> None:
    """Within the block of `init`, also where the trial does not keep it."""
    agent, context = start(config=CONFIG, length=2)
    rt.Trainer(PlainTrial(context)).fit()
    assert finish(agent, context)[-2:] == ["v2", "s2"]


def test_the_log_has_the_batch_size(start: Start) -> None:
    """With how many batches make a step of the optimizer."""
    agent, context = start(
        config=CONFIG | {"optimizations": {"aggregation_frequency": 2}}, length=2
    )
    with structlog.testing.capture_logs() as logs:
        rt.Trainer(PlainTrial(context)).fit()
    finish(agent, context)
    said = "each step trains 4 records; gradients are accumulated over 2"
    assert said in [each["event"] for each in logs]


def test_a_batch_size_that_contradicts_the_hyperparameter_is_refused(start: Start) -> None:
    """Before anything is trained, by the names of both."""
    _, context = start(config=CONFIG, length=2, hparams={"global_batch_size": 8})
    with pytest.raises(rt.InvalidPlan, match=r"batch size is 4, but .*global_batch_size is 8"):
        rt.Trainer(PlainTrial(context)).fit()


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


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have checkpoints cost nothing, so that one is due whenever none is being stored."""
    monkeypatch.setattr(checkpoint_schedule, "FIRST_S", 0.0)
    monkeypatch.setattr(checkpoint_schedule.Cost, "period_s", 0.0)


def test_checkpoints_come_by_themselves(start: Start, hasty: None) -> None:
    """Where no period is set; what was chosen is among the metrics, the curve is as without."""

    class Patient(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.core.checkpoint.wait()  # one that is being stored delays the next
            return super().train_batch(batch, epoch_idx, batch_idx)

    said, curves = [], []
    for period in (None, {"batches": 0}):
        agent, context = start(config=CONFIG | {"min_checkpoint_period": period}, length=30)
        rt.Trainer(Patient(context), context).fit()
        finish(agent, context)
        said.append([stored.steps_completed for stored in agent.of(Stored)])
        curves.append((agent.reports("training"), agent.reports("validation")))
        told = "checkpoint_period_s" in str(agent.reports("system"))
        assert told == (period is None)
    assert curves[0] == curves[1]
    assert said[1] == [30]
    assert len(said[0]) > 2


def test_a_run_by_hand_keeps_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    """Nothing would delete the others."""
    monkeypatch.chdir(tmp_path)
    with rt.init(config=CONFIG) as context:
        rt.Trainer(PlainTrial(context), context).fit(max_length=rt.Batch(30))
    assert len(list((tmp_path / "rung-local").rglob("manifest.json"))) == 1


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


@pytest.mark.parametrize(
    ("final", "policy", "stop", "expected"),
    [
        (True, "best", 6, ["s4"]),  # a few batches more or less are not worth another
        (True, "best", 10, ["s4"]),  # and the validation at 8 was worse
        (False, "best", 6, ["s4", "s6"]),  # it is to go on from there
        (True, "none", 6, ["s6"]),  # there would be none
    ],
)
def test_a_stopped_trial_keeps_the_checkpoint_of_its_validation(
    start: Start,
    final: bool,  # noqa: FBT001 - a parameter of the test
    policy: str,
    stop: int,
    expected: list[str],
) -> None:
    """It is stopped because of that validation, a few batches later, and trains no more."""
    config = CONFIG | {"checkpoint_policy": policy, "min_validation_period": {"batches": 4}}
    agent, context = start(config=config, length=1000)

    class Stopped(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == stop - 1:
                agent.preempt(final=final)
                while not context.core.preempt.should_preempt(auto_ack=False):
                    pass
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_full_dataset(self, data_loader: DataLoader[Any]) -> Mapping[str, Any]:
            return {"loss": float(context.current_train_batch())}

    rt.Trainer(Stopped(context), context).fit()
    said = finish(agent, context)
    assert "ack" in said
    assert [word for word in said if word[0] == "s"] == expected


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
    "min_validation_period": {"batches": 0},
}
"""Its rungs are 1, 4 and 16."""


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        ({}, [1, 4, 16]),
        ({"min_validation_period": {"batches": 2}}, [1, *range(2, 17, 2)]),
        ({"min_validation_period": None}, [1, 4, 6, 12, 16]),
    ],
)
def test_a_trial_validates_at_the_rungs_of_its_search(
    start: Start, period: dict[str, Any], expected: list[int]
) -> None:
    """At period 0 nowhere else; with one, once where both fall together; by default each epoch."""
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


def test_rung_init_trains_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rung.init` with `trial_context` gives the weights of `rung.torch.init`, bit for bit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNG_ALLOCATION", raising=False)
    with rt.init(config=CONFIG, seed=3) as context:
        wanted = PlainTrial(context)
        rt.Trainer(wanted, context).fit(max_length=rt.Batch(3))
    with rung.init(config=CONFIG, seed=3) as run:
        context = rt.trial_context(run)
        assert rt.trial_context(run) is context
        found = PlainTrial(context)
        rt.Trainer(found).fit(max_length=rt.Batch(3))
    for one, other in zip(wanted.model.parameters(), found.model.parameters(), strict=True):
        assert one.equal(other)
