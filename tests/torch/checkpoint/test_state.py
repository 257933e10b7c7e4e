"""What a checkpoint holds of a trial, and who takes it in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from rung import torch as rt
from rung.core.ipc.protocol import Stored
from rung.torch import determinism
from rung.training import rng
from support.trials.plain import PlainTrial
from support.trials.story import CONFIG, finish

from ..conftest import Start  # noqa: TID252 - of the folder above


def _donated(start: Start, folder: Path) -> tuple[PlainTrial, str]:
    """Train a trial for 6 batches; return it and its checkpoint."""
    agent, context = start(folder, config=CONFIG, length=6)
    donor = PlainTrial(context)
    rt.Trainer(donor, context).fit()
    finish(agent, context)
    [stored] = agent.of(Stored)
    agent.close()
    agent.path.unlink()
    return donor, stored.checkpoint_id


def test_another_experiments_checkpoint_gives_only_its_model(start: Start, tmp_path: Path) -> None:
    """A warm start takes weights along, and neither counters nor generators."""
    donor, checkpoint_id = _donated(start, tmp_path / "first")

    class Untouched(PlainTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 0:
                assert self.weights() == donor.weights()
            return super().train_batch(batch, epoch_idx, batch_idx)

    second, context = start(
        tmp_path / "first",
        config=CONFIG,
        length=2,
        experiment_id="exp00001",
        trial_id="exp00001.4",
        restore=[checkpoint_id],
    )
    rt.Trainer(Untouched(context), context).fit()
    assert finish(second, context) == ["r6", "t2", "v2", "s2"]


def test_a_trial_goes_on_where_the_donor_of_its_weights_was(start: Start, tmp_path: Path) -> None:
    """Within a search, weights come with the length for which they were trained."""
    _, checkpoint_id = _donated(start, tmp_path / "first")
    second, context = start(
        tmp_path / "first",
        config=CONFIG,
        length=8,
        trial_id="exp00000.4",
        restore=[checkpoint_id],
    )
    rt.Trainer(PlainTrial(context), context).fit()
    assert finish(second, context) == ["r6", "t8", "v8", "s8"]


class Faster(PlainTrial):
    """A trial of another learning rate, which it may set again after the restore."""

    def __init__(self, context: rt.TrialContext, *, again: bool) -> None:
        super().__init__(context)
        self.again = again
        self.rates: set[float] = set()
        self.optimizer.param_groups[0]["lr"] = 0.2

    def build_callbacks(self) -> dict[str, rt.Callback]:
        """Return what sets it."""
        optimizer = self.optimizer

        class OwnRate(rt.Callback):
            def on_training_start(self) -> None:
                optimizer.param_groups[0]["lr"] = 0.2

        return {"rate": OwnRate()} if self.again else {}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Note the rate."""
        self.rates.add(self.optimizer.param_groups[0]["lr"])
        return super().train_batch(batch, epoch_idx, batch_idx)


@pytest.mark.parametrize("again", [False, True])
def test_the_donors_learning_rate_is_told(start: Start, tmp_path: Path, *, again: bool) -> None:
    """It is in the optimizer's state, and overrides a hyperparameter that is not set again."""
    _, checkpoint_id = _donated(start, tmp_path / "first")
    _, context = start(
        tmp_path / "first",
        config=CONFIG,
        length=8,
        trial_id="exp00000.4",
        restore=[checkpoint_id],
    )
    trial = Faster(context, again=again)
    with structlog.testing.capture_logs() as logs:
        rt.Trainer(trial, context).fit()
    [told] = [log["event"] for log in logs if "learning rate" in log["event"]]
    assert told.startswith(
        "optimizer 0 goes on at the checkpoint's learning rate, 0.1, and not at 0.2"
    )
    assert trial.rates == ({0.2} if again else {0.1})


def test_a_rate_that_a_scheduler_changed_is_not_told() -> None:
    """What a schedule begins with is compared; only optimizers that differ are named."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    one = torch.optim.SGD([parameter], 0.1)
    torch.optim.lr_scheduler.ConstantLR(one, factor=0.5)
    other = torch.optim.SGD([{"params": [parameter], "lr": 0.1}])
    built = determinism.learning_rates([one, other])
    assert one.param_groups[0]["lr"] == 0.05
    with structlog.testing.capture_logs() as logs:
        determinism.log_rates(built, [[0.1], [0.1]])
    assert logs == []
    with structlog.testing.capture_logs() as logs:
        determinism.log_rates(built, [[0.1], [0.3]])
    assert logs[0]["event"].startswith("optimizer 1 goes on")


def test_a_state_that_cannot_be_kept_is_named(start: Start) -> None:
    """What torch.load(weights_only=True) could not load is refused when it is stored."""

    class Odd(PlainTrial):
        def state_dict(self) -> dict[str, Any]:
            return {"seen": np.zeros(3)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Never reached."""

    _, context = start(config=CONFIG, length=1)
    with pytest.raises(rt.NotPlain, match=r"trial\.seen.*torch\.from_numpy"):
        rt.Trainer(Odd(context), context).fit()


def test_by_hand_it_trains_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Rung, training stores checkpoints, and a later run goes on from one of them."""
    monkeypatch.chdir(tmp_path)
    weights = []
    with rt.init(seed=3) as context:
        trial = PlainTrial(context)
        rt.Trainer(trial, context).fit(max_length=rt.Batch(8))
        weights.append(trial.weights())
    with rt.init(seed=3) as context:
        rt.Trainer(PlainTrial(context), context).fit(max_length=rt.Batch(4))
        trial_id = context.core.info.trial.trial_id
    with rt.init(seed=3, restore=f"{trial_id}.1.4") as context:
        trial = PlainTrial(context)
        rt.Trainer(trial, context).fit(max_length=rt.Batch(8))
        weights.append(trial.weights())
    assert weights[0] == weights[1]


class Tracked:
    """Has a state of which nobody knows what its names mean."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        """Return it."""
        return self.state

    def load_state_dict(self, state: Any) -> None:
        """Take it back."""
        self.state = state


def test_what_is_no_model_keeps_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that a compiled model's parameters have; and a state of None is one."""
    monkeypatch.chdir(tmp_path)
    states = [{"_orig_mod.weight": 1, "block._orig_mod.bias": torch.tensor(2)}, None]
    with rt.init(seed=3) as context:
        for number, state in enumerate(states):
            context.keep(f"tracked {number}", Tracked(state))
        rt.Trainer(PlainTrial(context), context).fit(max_length=rt.Batch(1))
        trial_id = context.core.info.trial.trial_id
    with rt.init(seed=3, restore=f"{trial_id}.1.1") as context:
        kept = [context.keep(f"tracked {number}", Tracked("none")) for number in range(2)]
        rt.Trainer(PlainTrial(context), context).fit(max_length=rt.Batch(2))
    assert [thing.state for thing in kept] == states


@pytest.mark.parametrize("before", [True, False])
def test_a_scaler_may_be_switched_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    """One that was disabled has no state to take up, and one that is takes none."""
    monkeypatch.chdir(tmp_path)
    with rt.init(seed=3) as context:
        context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0, enabled=before))
        rt.Trainer(PlainTrial(context), context).fit(max_length=rt.Batch(1))
        trial_id = context.core.info.trial.trial_id
    with rt.init(seed=3, restore=f"{trial_id}.1.1") as context:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=not before)
        context.wrap_scaler(scaler)
        rt.Trainer(PlainTrial(context), context).fit(max_length=rt.Batch(2))
    assert scaler.get_scale() == (1.0 if before else 4.0)


def test_generators_survive_json() -> None:
    """All states come back from what a checkpoint holds of them."""
    rng.seed_everything(3)
    before = rng.capture()
    drawn = torch.rand(1).item(), np.random.rand()  # noqa: NPY002 - the global one
    rng.restore(rng.arrays_from_json(rng.arrays_to_json(before), before.torch, before.cuda))
    assert (torch.rand(1).item(), np.random.rand()) == drawn  # noqa: NPY002 - the global one


class Unstorable(PlainTrial):
    """Has a state that no checkpoint can hold."""

    def state_dict(self) -> dict[str, Any]:
        """Return a set."""
        return {"seen": {1, 2}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""


class Nameless(PlainTrial):
    """Has a callback with such a state."""

    def build_callbacks(self) -> dict[str, rt.Callback]:
        """Return it."""

        class Files(rt.Callback):
            def state_dict(self) -> dict[str, Any]:
                return {"best": Path("best.pt")}

        return {"files": Files()}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Unstorable, r"trial\.seen: .* builtins\.set; use a sorted list"),
        (Nameless, r"callbacks\.files\.best: .*Path; use its str"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_the_first_batch(
    start: Start, kind: type[PlainTrial], text: str
) -> None:
    """And not after the training that ends with the first checkpoint."""
    agent, context = start(config=CONFIG, length=6)
    with pytest.raises(rt.NotPlain, match=text):
        rt.Trainer(kind(context), context).fit()
    assert finish(agent, context) == []


class Sparse(PlainTrial):
    """Trains a sparse embedding, with a sparse buffer, in steps of two batches."""

    def __init__(self, context: rt.TrialContext) -> None:
        self.context = context
        net = torch.nn.Sequential(torch.nn.Embedding(4, 1, sparse=True))
        net.register_buffer("adjacency", torch.eye(3).to_sparse())
        self.model = context.wrap_model(net)
        parameters = list(net.parameters())
        self.adam = context.wrap_optimizer(torch.optim.SparseAdam(parameters))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train the entry of a batch's number."""
        loss = self.model(torch.tensor([batch_idx % 4])).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.adam)
        return loss

    def evaluate_batch(self, batch: Any) -> Any:
        """Return the size of the first entry."""
        return {"loss": self.model(torch.tensor([0])).square().mean()}


def test_sparse_gradients_are_stored_within_a_step(start: Start, tmp_path: Path) -> None:
    """A resumed run adds to them, and to the same embedding."""
    config = CONFIG | {"optimizations": {"aggregation_frequency": 2}}
    weights = []
    for number, lengths in enumerate([[4], [3, 4]]):
        restore: list[str] = []
        for length in lengths:
            folder = tmp_path / str(number)
            agent, context = start(folder, config=config, length=length, seed=1, restore=restore)
            trial = Sparse(context)
            rt.Trainer(trial, context).fit()
            context.core.close()
            agent.wait_for_end()
            restore = [agent.of(Stored)[-1].checkpoint_id]
            agent.close()
            agent.path.unlink()
        weights.append(trial.weights())
    assert weights[0] == weights[1]
