"""What changes during training and is in no state is kept, or refused at a checkpoint by name."""

import contextlib
import copy
import dataclasses
import datetime as dt
import enum
import functools
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
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
from support.frameworks.changing import warming
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


@dataclasses.dataclass
class Outcome:
    """A record."""

    batch: int
    values: list[torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A record that does not change."""

    batch: int
    at: dt.timedelta


class Tally:
    """Has no dict."""

    __slots__ = ("batches", "last")
    last: tuple[int, str]

    def __init__(self) -> None:
        self.batches = 0


class Jitter:
    """A transform."""

    def __init__(self) -> None:
        self.strength = 0.0

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """Shift."""
        return value + self.strength * torch.rand(1)


def gentle(value: torch.Tensor) -> torch.Tensor:
    """Return a loss."""
    return value.square().mean()


def steep(value: torch.Tensor) -> torch.Tensor:
    """Return another."""
    return value.abs().mean()


def scaled(value: torch.Tensor, by: float) -> torch.Tensor:
    """Return a third."""
    return by * value.mean()


class Level(Dataset[torch.Tensor]):
    """Data that get harder."""

    def __init__(self) -> None:
        self.hardness = 0.0
        self.transform = Jitter()
        self.targets = torch.zeros(16)
        self.seen = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        self.seen += 1
        noise = 0.01 * torch.rand(1)
        return torch.cat(
            [
                self.transform(INPUTS[index] * (1 + self.hardness) + noise),
                self.targets[index : index + 1],
            ]
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

    margin = 0.0

    def __init__(
        self, context: rt.TrialContext, change: Callable[["Changing", int], None]
    ) -> None:
        self.context = context
        self.change_it = change
        self.model = context.wrap_model(Net())
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.head.parameters(), 0.02, momentum=0.9)
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
        self.criterion: Callable[[torch.Tensor], torch.Tensor] = gentle
        self.warmth = warming()
        self.warm = 0.0
        self.tally = Tally()
        self.last: Outcome | None = None
        self.handle: Any = None
        self.unlabeled = DataLoader(Level(), batch_size=4)

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
        loss = self.criterion(self.model(inputs) * self.factor + self.center - targets)
        loss = loss + 0.1 * (
            self.current(inputs).mean() * getattr(self, "old", 0.0) * float(self.weights[0])
        )
        loss = loss + 0.01 * (len(self.history) + self.counter.epochs + float(self.parts["count"]))
        loss = loss + 0.1 * (self.average.model(inputs) - self.model(inputs)).square().mean()
        extra = self.margin + self.warm + self.tally.batches + self.counter.weight
        loss = loss * (1 + 0.01 * (extra + self.unlabeled.dataset.hardness))  # type: ignore[attr-defined]
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
            self.criterion.__name__, self.margin, self.warm, self.tally.batches,
            getattr(self.tally, "last", None), self.counter.weight, self.data.transform.strength,
            self.unlabeled.dataset.hardness,  # type: ignore[attr-defined]
            self.last and (self.last.batch, [it.tolist() for it in self.last.values]),
        ]  # fmt: skip


class Counter(rt.Callback):
    """Counts epochs, and tells no state."""

    def __init__(self, trial: Changing) -> None:
        self.trial = trial
        self.epochs = 0
        self.weight = 0.0

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


def rate(trial: Changing) -> None:
    """Slow one group down."""
    trial.optimizer.param_groups[1]["lr"] *= 0.5
    trial.optimizer.param_groups[1]["weight_decay"] = 0.1


def statistics(trial: Changing) -> None:
    """Freeze the statistics of one layer, and slow another's down."""
    norm: Any = trial.model.backbone[1]
    norm.eval()
    norm.momentum = 0.01


def of_callback(trial: Changing) -> None:
    """Change what a callback has."""
    trial.counter.weight += 0.5


def transform(trial: Changing) -> None:
    """Strengthen a transform of the data set."""
    trial.data.transform.strength = 0.3


def second_data(trial: Changing) -> None:
    """Change a data set that only a loader has."""
    trial.unlabeled.dataset.hardness += 0.5  # type: ignore[attr-defined]


def criterion(trial: Changing) -> None:
    """Train by another function."""
    trial.criterion = steep


def enclosed(trial: Changing) -> None:
    """Count in a variable that a function encloses."""
    trial.warm = trial.warmth()


def slots(trial: Changing) -> None:
    """Change attributes without a dict, and set one for the first time."""
    trial.tally.batches += 1
    trial.tally.last = (trial.tally.batches, "batch")


def of_class(trial: Changing) -> None:
    """Change an attribute of the class."""
    type(trial).margin += 0.5


def records(trial: Changing) -> None:
    """Make records, and values of Python's own types."""
    batch = trial.tally.batches
    bias = trial.model.head.bias.detach().clone()
    trial.last = Outcome(batch, [bias])
    trial.history.append(Seen(batch, dt.timedelta(seconds=batch, microseconds=1)))
    trial.tables |= {"half": Decimal("0.5"), "turn": 1j, "some": range(3), "raw": bytearray(b"a")}
    trial.tables["day"] = dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC)


def everything(trial: Changing) -> None:
    """Do all of it."""
    for change in CHANGES:
        if change not in {regrouped, frozen, everything}:
            change(trial)


EACH_BATCH = {
    average, target, center, array, plain, tensors, rate, of_callback, second_data, enclosed,
    slots, of_class, records,
}  # fmt: skip
CHANGES = [
    modes, unfrozen, frozen, regrouped, layer, mask, buffers, harder, average, target, switched,
    center, array, plain, deleted, tensors, rate, statistics, of_callback, transform, second_data,
    criterion, enclosed, slots, of_class, records, everything,
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

        Changing.margin = 0.0  # as in a process that begins
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


class Tabulating(Changing):
    """Has a table."""

    table: Any = None

    def world(self) -> list[Any]:
        """Add the table."""
        return [*super().world(), self.table.to_dict("split"), [*map(str, self.table.dtypes)]]


def test_a_table_of_pandas_outlives_a_kill(start: Start, tmp_path: Path) -> None:
    """Made in training, and changed in place."""
    pandas = pytest.importorskip("pandas")

    def tabulate(trial: Changing, batch: int) -> None:
        if batch == 3:
            trial.table = pandas.DataFrame({"name": ["a"], "loss": [0.5]})  # type: ignore[attr-defined]
        if batch > 3:
            trial.table.loc[batch] = [f"batch {batch}", batch / 3]  # type: ignore[attr-defined]

    calm = trained(start, tmp_path / "calm", tabulate, [], Tabulating)
    assert trained(start, tmp_path / "killed", tabulate, [5, 9], Tabulating) == calm


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
    """Choose a function that has no name."""
    trial.criterion = lambda value: value.square().sum()


def partial(trial: Changing) -> None:
    """Give a function another argument."""
    trial.choose = functools.partial(scaled, by=2)  # type: ignore[attr-defined]


def overridden(trial: Changing) -> None:
    """Put a function in the place of a method."""
    head: Any = trial.model.head
    head.forward = lambda inputs: inputs[:, :1]


def shared(trial: Changing) -> None:
    """Refer to a record from two places."""
    trial.last = trial.other_last = Outcome(1, [])  # type: ignore[attr-defined]


def hook(trial: Changing) -> None:
    """Register a hook with a layer."""
    trial.model.head.register_forward_hook(lambda *it: 2 * it[-1])


def first_hook(trial: Changing) -> None:
    """Register one that is called before."""
    trial.model.backbone.register_forward_pre_hook(lambda *it: 2 * it[-1][0])


def gradients(trial: Changing) -> None:
    """Register one with a parameter."""
    weight: Any = trial.model.head.weight
    weight.register_hook(lambda gradient: 2 * gradient)


def step_hook(trial: Changing) -> None:
    """Register one with an optimizer."""
    trial.optimizer.register_step_pre_hook(lambda *_: None)


def passing(*_values: Any) -> None:
    """Do nothing, as a hook."""


def unhooked(trial: Changing) -> None:
    """Remove one that was there."""
    trial.handle.remove()


def swapped(trial: Changing) -> None:
    """Go over to another optimizer."""
    trial.optimizer = torch.optim.SGD(trial.model.head.parameters(), 0.01)


def scheduled(trial: Changing) -> None:
    """Make a scheduler."""
    trial.decay = torch.optim.lr_scheduler.StepLR(trial.optimizer, 1)  # type: ignore[attr-defined]


def of_callbacks(trial: Changing) -> None:
    """Train something by an optimizer of a callback."""
    weight = torch.ones(1, requires_grad=True)
    trial.counter.own = torch.optim.SGD([weight], 0.1, momentum=0.9)  # type: ignore[attr-defined]
    weight.sum().backward()  # type: ignore[no-untyped-call]  # torch's
    trial.counter.own.step()  # type: ignore[attr-defined]


def second(trial: Changing) -> None:
    """Make a model, and an optimizer that trains it."""
    trial.critic = nn.Linear(1, 1)  # type: ignore[attr-defined]
    trial.rival = torch.optim.SGD(trial.critic.parameters(), 0.1)  # type: ignore[attr-defined]


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
        (chosen, r"Changing\.criterion is the function chosen.*lambda> now, and was .*gentle"),
        (
            partial,
            r"Changing\.choose is the function scaled\(by=2\) now, and .*scaled\(by=1\)",
        ),
        (overridden, r"model\.head\.forward is the function overridden.* now, and was not there"),
        (shared, r"Changing\.other_last is a Outcome now, and was not there"),
        (hook, r"model\.head\.forward_hooks are hook\..*lambda> now, and were none"),
        (first_hook, r"model\.backbone\.forward_pre_hooks are first_hook\..* now, and were none"),
        (gradients, r"model\.head\.weight\.backward_hooks are gradients\..* now, and were none"),
        (step_hook, r"optimizers\[0\]\.optimizer_step_pre_hooks are step_hook\..* now"),
        (unhooked, r"model\.backbone\.0\.forward_hooks are none now, and were passing"),
        (
            swapped,
            r"the optimizer Changing\.optimizer is not wrapped.* in __init__, not in training",
        ),
        (of_callbacks, r"callbacks\['counter'\]\.own is a SGD whose state is in no checkpoint"),
        (scheduled, r"the scheduler Changing\.decay is not wrapped"),
        (second, r"the model Changing\.critic is not wrapped: .*; the optimizer Changing\.rival"),
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
    trial.choose = functools.partial(scaled, by=1)  # type: ignore[attr-defined]
    trial.handle = trial.model.backbone[0].register_forward_hook(passing)
    with pytest.raises(IncompleteCheckpoint, match=text) as raised:
        rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert "\n" not in str(raised.value)
    assert [it.steps_completed for it in agent.of(Stored)][-1] == 3


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("wrap_model", lambda it: it.wrap_model(nn.Linear(1, 1))),
        ("wrap_optimizer", lambda it: it.wrap_optimizer(it.optimizers[0])),
        ("wrap_lr_scheduler", lambda it: it.wrap_lr_scheduler(None)),
        ("wrap_scaler", lambda it: it.wrap_scaler(torch.amp.GradScaler("cpu"))),
        ("use_amp", lambda it: it.use_amp()),
        ("wrap_reducer", lambda it: it.wrap_reducer(sum, "total")),
        ("keep", lambda it: it.keep("average", nn.Linear(1, 1))),
    ],
)
def test_what_training_wraps_is_refused_at_once(
    start: Start, method: str, call: Callable[[rt.TrialContext], Any]
) -> None:
    """A run that resumes would begin without it; the error has the place for it."""
    agent, context = start(config=CONFIG, length=2)
    trial = Changing(context, lambda trial, _batch: call(trial.context))
    with pytest.raises(NotResumable, match=rf"context\.{method} was called in training.*__init__"):
        rt.Trainer(trial, context).fit()
    assert finish(agent, context) == []


class Telling(Changing):
    """Has a state of its own, which leaves out what training makes."""

    def state_dict(self) -> dict[str, Any]:
        """Return a number."""
        return {"factor": self.factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""
        self.factor = state["factor"]


def test_a_state_of_its_own_does_not_hide_a_model_that_training_makes(start: Start) -> None:
    """It is refused by name at the first checkpoint, which does not have it."""
    agent, context = start(config=CONFIG, length=2)
    trial = Telling(context, lambda trial, batch: None if batch else second(trial))
    with pytest.raises(IncompleteCheckpoint, match=r"the model Telling\.critic is not wrapped"):
        rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert agent.of(Stored) == []


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


def test_an_object_that_a_sampler_gets_in_training_is_refused(start: Start) -> None:
    """By its name: a run that resumes would draw another order."""
    _, context = start(config=CONFIG, length=8)

    def ruled(trial: Changing, batch: int) -> None:
        if batch == 2:
            trial.sampler.rule = Helper()  # type: ignore[attr-defined]

    with pytest.raises(NotResumable, match=r"sampler\.rule is a Helper now, and was not there"):
        rt.Trainer(Drawing(context, ruled), context).fit()


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
