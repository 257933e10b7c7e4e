"""A Keras trial in which a callback changes the world; an order names the change."""

import dataclasses
import random
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from rung import keras as rk
from support.frameworks.keras_trial import INPUTS, TARGETS, Burning, digest_of, warmed
from support.fuse import Fuse

BATCH = 6
CHANGED_AT = 5
"""The step before which a change is made first."""


@dataclasses.dataclass
class Outcome:
    """A record."""

    step: int
    values: list[float]


class Scaled(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """A layer with a layer in it, and settings of its own."""

    def __init__(self) -> None:
        super().__init__(name="scaled")
        punished = keras.regularizers.L2(0.01)
        self.inner = keras.layers.Dense(4, kernel_regularizer=punished, name="inner")
        self.scale = 1.0
        self.steps = [1.0, 2.0]
        self.table = np.ones(2, "float32")
        self._alpha = 1.0
        self.center = keras.ops.ones(2)
        self.knobs = types.SimpleNamespace(gain=1.0)
        self.kinds = {"a"}
        self.extra = 1.0
        self.last_output: Any = None
        self.flow = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, inputs: Any) -> Any:
        """Compute."""
        own = self.scale * self.steps[0] * self.table[0] * self._alpha * self.knobs.gain
        own *= len(self.kinds) * getattr(self, "extra", 2.0) * getattr(self, "bonus", 1.0)
        self.last_output = self.inner(inputs) * own * self.center[0] * self.flow
        return self.last_output


class Weighing(keras.Model):  # type: ignore[misc]  # as above
    """Has an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(8, activation="relu")
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.4)
        self.scaled = Scaled()
        self.last = keras.layers.Dense(1)
        self.beta = 1.0

    def call(self, inputs: Any, training: bool = False) -> Any:  # noqa: FBT001, FBT002 - Keras'
        """Compute."""
        hidden = self.drop(self.norm(self.first(inputs), training=training), training=training)
        return self.last(self.scaled(hidden)) * self.beta


class Data(keras.utils.PyDataset):  # type: ignore[misc]  # as above
    """The records in batches, the harder the higher its level, and in an order of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 0.0
        self.order = np.arange(len(INPUTS))

    def __len__(self) -> int:
        return len(INPUTS) // BATCH

    def __getitem__(self, index: int) -> Any:
        chosen = self.order[index * BATCH : (index + 1) * BATCH]
        return INPUTS[chosen] * (1 + self.level), TARGETS[chosen]

    def on_epoch_end(self) -> None:
        """Shuffle."""
        np.random.shuffle(self.order)  # noqa: NPY002 - as scripts do it


class Validation(Data):
    """Records that get harder with each time that they were read, and by a callback."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def __getitem__(self, index: int) -> Any:
        inputs, targets = super().__getitem__(index)
        return inputs * (1 + 0.1 * self.passes), targets

    def on_epoch_end(self) -> None:
        """Shuffle, and count."""
        super().on_epoch_end()
        self.passes += 1


class Loaded:
    """The records one by one, for a DataLoader of torch."""

    def __init__(self) -> None:
        self.level = 0.0

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index] * (1 + self.level), TARGETS[index]


_READ: dict[str, Validation] = {}
"""The validation data, to which no callback refers."""


class Changing(keras.callbacks.Callback):  # type: ignore[misc]  # as above
    """Makes a change before a step."""

    def __init__(self, change: str | None, data: Data | Loaded) -> None:
        super().__init__()
        self.change = change
        self.data = data
        self.step = 0
        self.factor = 1.0
        self.decays = np.ones(2)
        self.average: list[Any] | None = None
        self.last: Outcome | None = None
        self.seen: dict[str, int] = {}

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Make it."""
        self.step += 1
        if self.change is not None and self.step >= CHANGED_AT:
            change = BY_NAME[self.change]
            if self.step == CHANGED_AT or change in EACH_STEP:
                change(self)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Set the rate by what has changed."""
        self.model.optimizer.learning_rate = 0.05 * self.factor * float(self.decays[0])

    def told(self) -> list[Any]:
        """Return what it has become."""
        average = [each.tolist() for each in self.average or ()]
        last = self.last and dataclasses.astuple(self.last)
        read = _READ["validation"]
        own = [self.step, self.factor, self.decays.tolist(), average, last, self.seen]
        return [*own, read.level, read.passes, read.order.tolist()]


def factor(it: Changing) -> None:
    """Change a number of the callback."""
    it.factor *= 0.9


def decays(it: Changing) -> None:
    """Change an element of an array of it."""
    it.decays[0] *= 0.8


def average(it: Changing) -> None:
    """Follow the weights."""
    now = it.model.get_weights()
    before = it.average or now
    it.average = [0.9 * old + 0.1 * new for old, new in zip(before, now, strict=True)]


def record(it: Changing) -> None:
    """Make a record."""
    it.last = Outcome(it.step, [it.factor])
    it.seen[f"step {it.step}"] = it.step


def flow(it: Changing) -> None:
    """Change a weight that is not trained."""
    it.model.scaled.flow.assign(0.5)


def rate(it: Changing) -> None:
    """Change the learning rate, by the factor that it follows."""
    it.factor = 0.1


def harder(_: Changing) -> None:
    """Validate with harder data."""
    _READ["validation"].level = 0.5


def loaded(it: Changing) -> None:
    """Have harder data, which a DataLoader reads."""
    it.data.level = 0.5


def frozen(it: Changing) -> None:
    """Freeze a layer."""
    it.model.first.trainable = False


def dropout(it: Changing) -> None:
    """Drop out more."""
    it.model.drop.rate = 0.6


def momentum(it: Changing) -> None:
    """Follow statistics faster."""
    it.model.norm.momentum = 0.5


def of_model(it: Changing) -> None:
    """Change an attribute of the model itself."""
    it.model.beta = 2.0


def number(it: Changing) -> None:
    """Change a number of a layer."""
    it.model.scaled.scale = 2.0


def items(it: Changing) -> None:
    """Change an item of a list of a layer."""
    it.model.scaled.steps[0] = 0.5


def array(it: Changing) -> None:
    """Change an element of an array of a layer."""
    it.model.scaled.table[0] = 0.5


def hidden(it: Changing) -> None:
    """Change a number of a layer under a hidden name."""
    it.model.scaled._alpha = 2.0


def tensor(it: Changing) -> None:
    """Make a tensor of a layer another one."""
    it.model.scaled.center = it.model.scaled.center * 2


def attribute(it: Changing) -> None:
    """Change an attribute of an object of a layer."""
    it.model.scaled.knobs.gain = 2.0


def members(it: Changing) -> None:
    """Add to a set of a layer."""
    it.model.scaled.kinds.add("b")


def added(it: Changing) -> None:
    """Give a layer an attribute that it did not have."""
    it.model.scaled.bonus = 2.0


def deleted(it: Changing) -> None:
    """Take an attribute from a layer."""
    del it.model.scaled.extra


def data(it: Changing) -> None:
    """Have harder data."""
    it.data.level = 0.5


def nested(it: Changing) -> None:
    """Change a layer within a layer that is no model."""
    it.model.scaled.inner.use_bias = False


def activation(it: Changing) -> None:
    """Compute by another function."""
    it.model.first.activation = keras.activations.tanh


def regularizer(it: Changing) -> None:
    """Punish weights more."""
    it.model.scaled.inner.kernel_regularizer.l2 = 0.1


def clipped(it: Changing) -> None:
    """Change a setting of the optimizer."""
    it.model.optimizer.clipnorm = 0.1


def swapped(it: Changing) -> None:
    """Go over to another optimizer."""
    it.model.optimizer = keras.optimizers.SGD(0.1)


def hook(it: Changing) -> None:
    """Register a hook, where a layer is a module of torch."""
    it.model.last.register_forward_hook(lambda *given: 2 * given[-1])


EACH_STEP: set[Callable[[Changing], None]] = {factor, decays, average, record}
KEPT = [factor, decays, average, record, flow, rate, harder]
REFUSED = [
    frozen, dropout, momentum, of_model, number, items, array, hidden, tensor, attribute, members,
    added, deleted, data, nested, activation, regularizer, clipped, swapped, hook, loaded,
]  # fmt: skip
BY_NAME = {each.__name__: each for each in (*KEPT, *REFUSED)}


def counting() -> tuple[Any, Callable[[], list[Any]]]:
    """Return a callback whose functions count in what they enclose, and what returns that."""
    steps = 0
    epochs: list[int] = []
    first: int

    def step(batch: int, logs: Any = None) -> None:
        nonlocal steps, first
        if steps == CHANGED_AT:
            first = steps
        steps += 1

    def ended(epoch: int, logs: Any = None) -> None:
        epochs.append(epoch)

    made = keras.callbacks.LambdaCallback(on_train_batch_end=step, on_epoch_end=ended)
    return made, lambda: [steps, epochs, first]


def network() -> Any:
    """Return a compiled model."""
    model = Weighing()
    model.compile(keras.optimizers.AdamW(0.05), "mse", jit_compile=False)
    model(INPUTS[:1])  # makes its weights
    return model


def warm_up() -> None:
    """Train once before all trials."""
    warmed(network, INPUTS, TARGETS)


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    with rk.init() as run:
        model, validation = network(), Validation()
        _READ["validation"] = validation
        own: Any = Data()
        given = own
        if order["change"] == "loaded":
            from torch.utils.data import DataLoader  # noqa: PLC0415 - where torch is the backend

            own = Loaded()
            given = DataLoader(own, batch_size=BATCH)
        changing = Changing(order["change"], own)
        lambdas, counts = counting()
        within = Validation() if order.get("within") else None
        ours = Burning(run, validation_data=within, batch_size=BATCH)
        ours.fuse = Fuse(order["moment"], run.checkpoint.wait)
        model.fit(
            given,
            epochs=3,
            validation_data=validation,
            callbacks=[changing, lambdas, ours],
            verbose=0,
        )
        return {
            "weights": digest_of(model),
            "rate": float(model.optimizer.learning_rate),
            "told": changing.told(),
            "counts": counts(),
            "drawn": random.random(),  # noqa: S311 - the generator's state
            "passes": [each.passes for each in (validation, within) if each is not None],
        }
