"""What changes during training and is in no state is kept, or refused at a checkpoint by name."""

import contextlib
import copy
import enum
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import structlog
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from rung import torch as rt
from rung.core.ipc.protocol import Stored
from rung.torch.checkpoint.completeness import IncompleteCheckpoint
from rung.training.errors import NotResumable
from support.trials.story import CONFIG, finish

from ..conftest import Start  # noqa: TID252 - of the folder above

LENGTH = 15
INPUTS = torch.linspace(-1, 1, 16).reshape(16, 1)


class Stage(enum.Enum):
    """A value of a type of its own."""

    EASY = 1
    HARD = 2


class Range(NamedTuple):
    """Another."""

    low: float
    high: float


class Level(Dataset[torch.Tensor]):
    """Data that get harder."""

    def __init__(self) -> None:
        self.hardness = 0.0
        self.targets = torch.zeros(16)
        self.seen = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        self.seen += 1
        noise = 0.01 * torch.rand(1)
        return torch.cat(
            [INPUTS[index] * (1 + self.hardness) + noise, self.targets[index : index + 1]]
        )


class Net(nn.Module):
    """A backbone and a head, which an attribute scales."""

    shift: torch.Tensor
    bank: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))
        self.head = nn.Linear(4, 1)
        self.scale = 1.0
        self.register_buffer("shift", torch.zeros(1), persistent=False)
        self.register_buffer("bank", torch.zeros(0))
        self.mask = torch.ones(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute."""
        found: torch.Tensor = self.head(self.backbone(inputs) * self.mask) * self.scale
        return found + self.shift + self.bank.sum()


class Average:
    """A copy of the model, with a counter that warms it up."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
        self.updates = 0

    def update(self, model: nn.Module) -> None:
        """Move it towards the model, as many scripts do: past the count of a tensor's changes."""
        self.updates += 1
        decay = min(0.9, self.updates / (self.updates + 3))
        for own, new in zip(self.model.parameters(), model.parameters(), strict=True):
            own.data.mul_(decay).add_(new.data, alpha=1 - decay)


class Changing(rt.Trial):
    """A trial whose world a function changes before each batch."""

    def __init__(
        self, context: rt.TrialContext, change: Callable[["Changing", int], None]
    ) -> None:
        self.context = context
        self.change_it = change
        self.model = context.wrap_model(Net())
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.head.parameters(), 0.05, momentum=0.9)
        )
        self.optimizer.add_param_group({"params": self.model.backbone[1].parameters()})
        self.model.backbone[0].requires_grad_(requires_grad=False)
        self.data = Level()
        self.average = Average(self.model)
        self.target = nn.Linear(1, 1).requires_grad_(requires_grad=False)
        self.center = torch.zeros(1)
        self.weights = np.ones(2)
        self.factor: Any = 1.0
        self.history: list[Any] = []
        self.tables: dict[Any, Any] = {}
        self.parts: dict[str, Any] = {"networks": [self.target, 3], "count": 0}
        self.current: Any = self.target
        self.other = nn.Linear(1, 1).requires_grad_(requires_grad=False)
        self.old = 5.0
        self.outcome: list[float] = []

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return shuffled data."""
        return DataLoader(self.data, batch_size=4, shuffle=True)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return the inputs."""
        return DataLoader(TensorDataset(INPUTS), batch_size=8)

    def build_callbacks(self) -> Mapping[str, rt.Callback]:
        """Return one that counts."""
        self.counter = Counter(self)
        return {"counter": self.counter}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Change the world, and train on all of it."""
        self.change_it(self, batch_idx)
        inputs, targets = batch[:, :1], batch[:, 1:]
        loss = (self.model(inputs) * self.factor + self.center - targets).square().mean()
        loss = loss + 0.1 * (
            self.current(inputs).mean() * getattr(self, "old", 0.0) * float(self.weights[0])
        )
        loss = loss + 0.01 * (len(self.history) + self.counter.epochs + float(self.parts["count"]))
        loss = loss + 0.1 * (self.average.model(inputs) - self.model(inputs)).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Validate what was averaged."""
        return {"loss": (self.average.model(batch[0]) - batch[0]).square().mean()}

    def world(self) -> list[Any]:
        """Return all that may have changed, to compare it."""
        tensors = [
            *self.model.state_dict().values(), self.model.shift, self.model.mask,
            *self.average.model.state_dict().values(), *self.target.state_dict().values(),
            self.center, self.data.targets, torch.from_numpy(self.weights),
        ]  # fmt: skip
        states = [it["momentum_buffer"] for it in self.optimizer.state.values()]
        groups = [
            [tuple(it.shape) for it in group["params"]] for group in self.optimizer.param_groups
        ]
        options = [
            {name: it for name, it in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]
        return [
            [it.tolist() for it in (*tensors, *states)],
            [it.requires_grad for it in self.model.parameters()],
            [it.training for it in self.model.modules()],
            groups, options, self.model.scale, self.data.hardness, self.data.seen, self.factor,
            [it.tolist() if isinstance(it, torch.Tensor) else it for it in self.history],
            self.tables, self.parts["count"], self.average.updates, self.counter.epochs,
            self.current is self.other, getattr(self, "old", None), vars(self).get("fresh"),
        ]  # fmt: skip


class Counter(rt.Callback):
    """Counts epochs, and tells no state."""

    def __init__(self, trial: Changing) -> None:
        self.trial = trial
        self.epochs = 0

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Count."""
        self.epochs += 1


def modes(trial: Changing) -> None:
    """Freeze statistics and switch dropout off."""
    trial.model.backbone.eval()


def unfrozen(trial: Changing) -> None:
    """Train the rest, for which a group is added."""
    trial.model.backbone[0].requires_grad_(requires_grad=True)
    trial.optimizer.add_param_group({"params": trial.model.backbone[0].parameters(), "lr": 0.01})


def frozen(trial: Changing) -> None:
    """Freeze a layer."""
    trial.model.backbone[1].requires_grad_(requires_grad=False)


def regrouped(trial: Changing) -> None:
    """Put the parameters into one group."""
    first, second = trial.optimizer.param_groups
    first["params"] += second["params"]
    del trial.optimizer.param_groups[1]


def layer(trial: Changing) -> None:
    """Set attributes of layers."""
    trial.model.scale = 2.0
    dropout: Any = trial.model.backbone[2]
    dropout.p = 0.6


def mask(trial: Changing) -> None:
    """Set some of a tensor in an attribute of a layer."""
    trial.model.mask[1:3] = 0


def buffers(trial: Changing) -> None:
    """Change buffers that no state has, and the size of one that a state has."""
    trial.model.shift += 0.5
    trial.model.bank = torch.full((3,), 0.1)


def harder(trial: Changing) -> None:
    """Make the data harder."""
    trial.data.hardness = 0.5
    trial.data.targets = torch.linspace(0, 1, 16)


def average(trial: Changing) -> None:
    """Average the weights."""
    trial.average.update(trial.model)


def target(trial: Changing) -> None:
    """Take the weights over into a network."""
    for own in trial.target.parameters():
        own.data.copy_(torch.full_like(own, trial.model.head.bias.item()))


def switched(trial: Changing) -> None:
    """Go over to another network."""
    trial.current = trial.other


def center(trial: Changing) -> None:
    """Move a tensor in an attribute, each time a new one."""
    trial.center = 0.9 * trial.center + 0.1 * trial.model.head.bias.detach()


def array(trial: Changing) -> None:
    """Change an element of an array."""
    trial.weights[0] *= 1.5


def plain(trial: Changing) -> None:
    """Collect plain values of all kinds."""
    trial.factor *= 1.01
    trial.history.append(len(trial.history))
    trial.parts["count"] = 1
    trial.tables |= {
        "stage": Stage.HARD, "range": Range(0.5, 1.0), 3: {1, 2}, "path": Path("a"),
        "last": deque([1, 2], maxlen=2), "counts": defaultdict(int, a=1), "none": None,
        "bytes": b"b", "nan": [float("inf")], "numpy": np.float32(0.5), (1, 2): (1, [2]),
    }  # fmt: skip
    trial.fresh = "new"  # type: ignore[attr-defined]


def deleted(trial: Changing) -> None:
    """Delete an attribute."""
    del trial.old


def tensors(trial: Changing) -> None:
    """Collect tensors."""
    trial.history.append(trial.model.head.bias.detach().clone())


def everything(trial: Changing) -> None:
    """Do all of it."""
    for change in CHANGES:
        if change not in {regrouped, frozen, everything}:
            change(trial)


EACH_BATCH = {average, target, center, array, plain, tensors}
CHANGES = [
    modes, unfrozen, frozen, regrouped, layer, mask, buffers, harder, average, target, switched,
    center, array, plain, deleted, tensors, everything,
]  # fmt: skip


def changing(change: Callable[[Changing], None], at: int) -> Callable[[Changing, int], None]:
    """Return a function that changes a trial's world at a batch, or from it on."""

    def before(trial: Changing, batch: int) -> None:
        for each in CHANGES[:-1] if change is everything else [change]:
            if change is everything and each in {regrouped, frozen}:
                continue
            if batch == at or (batch > at and each in EACH_BATCH):
                each(trial)

    return before


class Killed(Exception):
    """The run ends here."""


def trained(
    start: Start,
    folder: Path,
    change: Callable[[Changing, int], None],
    stops: list[int],
    kind: type[Changing] = Changing,
) -> tuple[list[Any], list[tuple[int, Any]]]:
    """Train a trial in runs that are stopped before batches; return its world and its losses."""
    restore: list[str] = []
    losses: dict[int, Any] = {}
    world: list[Any] = []
    for stop in [*stops, LENGTH + 1]:
        agent, context = start(
            folder, config=CONFIG | {"min_checkpoint_period": {"batches": 1}}, length=LENGTH,
            restore=restore,
        )  # fmt: skip

        def stopping(trial: Changing, batch: int, stop: int = stop) -> None:
            if batch == stop:
                raise Killed
            change(trial, batch)

        trial = kind(context, stopping)
        with contextlib.suppress(Killed):
            rt.Trainer(trial, context).fit()
        finish(agent, context)
        losses |= {step: values["loss"] for step, values in agent.reports("training")}
        losses |= {-step: values["loss"] for step, values in agent.reports("validation")}
        restore = [it.checkpoint_id for it in agent.of(Stored)][-1:] or restore
        world = trial.world()
        agent.close()
        agent.path.unlink(missing_ok=True)
    return world, sorted(losses.items())


@pytest.mark.parametrize("change", CHANGES)
def test_a_killed_run_goes_on_in_the_world_as_it_was(
    start: Start, tmp_path: Path, change: Callable[[Changing], None]
) -> None:
    """Bit for bit the trial that nobody killed: before, at, and after the change, twice."""
    draws = random.Random(change.__name__)  # noqa: S311 - the same in each run of this test
    at = draws.randrange(2, 9)
    stops = sorted({draws.randrange(1, at + 1), draws.randrange(at + 1, LENGTH)})
    calm = trained(start, tmp_path / "calm", changing(change, at), [])
    assert trained(start, tmp_path / "killed", changing(change, at), stops) == calm


class Helper:
    """An object that holds a value."""

    def __init__(self) -> None:
        self.value = 1


def made(trial: Changing) -> None:
    """Make an object."""
    trial.outcome = Helper()  # type: ignore[assignment]


def copied(trial: Changing) -> None:
    """Make a copy of the model."""
    trial.history.append(copy.deepcopy(trial.target))


def grown(trial: Changing) -> None:
    """Put a larger layer in place of one."""
    trial.model.head = nn.Linear(4, 2)


def exchanged(trial: Changing) -> None:
    """Put a layer of another kind in place of one."""
    trial.model.backbone[2] = nn.ReLU()


def chosen(trial: Changing) -> None:
    """Choose another function."""
    trial.choose = many  # type: ignore[attr-defined]


def nameless(trial: Changing) -> None:
    """Train a tensor of no model."""
    trial.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def forgotten(trial: Changing) -> None:
    """Take a parameter out of an optimizer, and leave its state there."""
    trial.optimizer.param_groups[0]["params"].pop()


def many(trial: Changing) -> None:
    """Collect objects."""
    trial.history += [Helper() for _ in range(1000)]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (made, r"Changing\.outcome is a Helper now, and was list .*: make the object in __init__"),
        (copied, r"Changing\.history is a list of 1 now, .* make the object in __init__"),
        (grown, r"model\.head\.bias is torch.float32 of \(2,\), and was torch.float32 of \(1,\)"),
        (exchanged, r"model\.backbone\.2 is a ReLU now, and was a Dropout"),
        (chosen, r"Changing\.choose is the function many now, and was the function .*made"),
        (nameless, r"optimizer 0, a SGD, has other groups now, with a parameter of no wrapped"),
        (
            forgotten,
            r"optimizer 0, a SGD, has a state of a parameter that is in none of its groups",
        ),
        (many, r"Changing\.history is a list of 1000 now"),
    ],
)
def test_what_cannot_be_set_again_is_refused_at_the_checkpoint(
    start: Start, change: Callable[[Changing], None], text: str
) -> None:
    """The first one after the change; those before it are stored."""
    agent, context = start(
        config=CONFIG | {"min_checkpoint_period": {"batches": 1}}, length=LENGTH
    )

    def once(trial: Changing, batch: int) -> None:
        if batch == 3:
            change(trial)

    trial = Changing(context, once)
    trial.choose = made  # type: ignore[attr-defined]
    with pytest.raises(IncompleteCheckpoint, match=text) as raised:
        rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert "\n" not in str(raised.value)
    assert [it.steps_completed for it in agent.of(Stored)][-1] == 3


def test_what_is_no_state_is_not_asked_for(start: Start) -> None:
    """Caches, iterators, locks, and objects that hold such, of which the log has a line."""
    _, context = start(config=CONFIG, length=2)

    def resources(trial: Changing, batch: int) -> None:
        held = Helper()
        held.lock = threading.Lock()  # type: ignore[attr-defined]
        trial.factor_cache = Helper()  # type: ignore[attr-defined]
        trial.batches = iter([1])  # type: ignore[attr-defined]
        trial.lock = held  # type: ignore[attr-defined]

    with structlog.testing.capture_logs() as logs:
        rt.Trainer(Changing(context, resources), context).fit()
    [told] = [it["event"] for it in logs if "not part of checkpoints" in it["event"]]
    assert told.startswith("Changing.lock has changed")


def test_a_setting_of_the_run_at_hand_stays(start: Start, tmp_path: Path) -> None:
    """Where `__init__` has made another value than in the run before, that is kept."""

    def counting(trial: Changing, batch: int) -> None:
        trial.factor += 1
        trial.old += 1
        if batch == 3:
            raise Killed

    config = CONFIG | {"min_checkpoint_period": {"batches": 1}}
    agent, context = start(tmp_path, config=config, length=LENGTH)
    with contextlib.suppress(Killed):
        rt.Trainer(Changing(context, counting), context).fit()
    finish(agent, context)
    newest = agent.of(Stored)[-1].checkpoint_id
    agent.close()
    agent.path.unlink()
    _, context = start(tmp_path, config=config, length=4, restore=[newest])
    trial = Changing(context, lambda _trial, _batch: None)
    trial.factor = 10.0
    rt.Trainer(trial, context).fit()
    assert (trial.factor, trial.old) == (10.0, 8.0)


class Hardest(Sampler[int]):
    """Draws by weights, which its trial changes, and counts its epochs."""

    def __init__(self) -> None:
        self.weights = torch.ones(16)
        self.epoch = 0

    def __len__(self) -> int:
        return 16

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        drawn = torch.multinomial(self.weights + self.epoch, 16, replacement=True)
        yield from drawn.tolist()


class Drawing(Changing):
    """Has a sampler that it changes, and data that are fetched by workers."""

    workers = 0

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return data of the sampler's order."""
        self.sampler = Hardest()
        return DataLoader(self.data, batch_size=4, sampler=self.sampler, num_workers=self.workers)

    def world(self) -> list[Any]:
        """Add the sampler."""
        return [*super().world(), self.sampler.weights.tolist(), self.sampler.epoch]


class Working(Drawing):
    """Has a worker, which sees the data set as it was at the epoch's start."""

    workers = 1


def mined(trial: Changing, batch: int) -> None:
    """Draw what was hard more often, and make it harder."""
    sampler: Any = trial.sampler  # type: ignore[attr-defined]
    sampler.weights[batch % 16] += 3
    trial.data.hardness += 0.1


@pytest.mark.parametrize("kind", [Drawing, Working])
@pytest.mark.parametrize("stops", [[2, 6], [4, 9], [7, 8]])
def test_samplers_and_data_sets_repeat_an_epoch_as_it_began(
    start: Start, tmp_path: Path, kind: type[Changing], stops: list[int]
) -> None:
    """What they were at its start draws the order; then they are what they had become."""
    calm = trained(start, tmp_path / "calm", mined, [], kind)
    assert trained(start, tmp_path / "killed", mined, stops, kind) == calm


def test_a_checkpoint_that_does_not_fit_says_what_does_not(start: Start, tmp_path: Path) -> None:
    """In one line, also where another experiment begins with it."""
    agent, context = start(tmp_path, config=CONFIG, length=1)
    rt.Trainer(Changing(context, lambda _trial, _batch: None), context).fit()
    finish(agent, context)
    newest = agent.of(Stored)[-1].checkpoint_id
    agent.close()
    agent.path.unlink()
    _, context = start(
        tmp_path, config=CONFIG, length=2, experiment_id="exp00001", trial_id="exp00001.0",
        restore=[newest],
    )  # fmt: skip
    trial = Changing(context, lambda _trial, _batch: None)
    trial.model.added = nn.Linear(4, 2).requires_grad_(requires_grad=False)
    with pytest.raises(
        NotResumable, match=r"model Net is not .*Missing key.*added.weight"
    ) as raised:
        rt.Trainer(trial, context).fit()
    assert "\n" not in str(raised.value)
