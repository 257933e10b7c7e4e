"""A Keras trial whose callbacks change the model and have states of their own.

An order names the callbacks, in their order.
"""

import collections
import itertools
import random
from typing import Any

import keras
import numpy as np

from rung import keras as rk
from support.frameworks.keras_trial import INPUTS, TARGETS, Burning, digest_of, network, warmed
from support.fuse import Fuse


class Scale:
    """An object of a callback's: a factor that grows."""

    def __init__(self) -> None:
        self.factor = 1.0


class Wild(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Changes weights and learning rate in each hook, by draws and states of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()
        self.losses: collections.deque[float] = collections.deque(maxlen=4)
        self.seen: dict[str, int] = {}
        self.drawing = np.random.default_rng(3)
        self.mean = keras.metrics.Mean()
        self.average: list[Any] | None = None
        self.flag = False
        self.name = "Wild"

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin, at a rate of its own."""
        self.seen = {"begin": 1}
        self.model.optimizer.learning_rate = 0.03

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Shake the weights, and grow."""
        self.flag = True
        self._count("epoch")
        self.scale.factor *= 1.1
        weights = self.model.get_weights()
        weights[0] = weights[0] + 0.01 * self.drawing.random(weights[0].shape, "float32")
        self.model.set_weights(weights)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Change the rate."""
        self._count("batch begin")
        optimizer = self.model.optimizer
        optimizer.learning_rate = float(optimizer.learning_rate) * 0.97 * self.scale.factor

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count, and follow the weights."""
        self.flag = False
        self._count("batch end")
        self.losses.append(float(logs["loss"]))
        self.mean.update_state(float(logs["loss"]))
        weights = self.model.get_weights()
        before = self.average or weights
        self.average = [0.9 * old + 0.1 * new for old, new in zip(before, weights, strict=True)]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set the weights to what they were on average."""
        self._count("epoch end")
        assert self.average is not None
        self.model.set_weights(self.average)

    def _count(self, hook: str) -> None:
        self.seen[hook] = self.seen.get(hook, 0) + 1

    def told(self) -> list[Any]:
        """Return what it has become."""
        own = float(self.mean.result()), float(self.drawing.random()), self.scale.factor
        return [list(self.losses), self.seen, self.flag, self.name, *own]


class Iterating(keras.callbacks.Callback):  # type: ignore[misc]  # as above
    """Has a position in something that tells none."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = itertools.cycle([0.1, 0.2])


class Freezing(keras.callbacks.Callback):  # type: ignore[misc]  # as above
    """Freezes a layer in the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Do it."""
        if epoch == 1:
            self.model.layers[0].trainable = False


def make(name: str) -> Any:  # noqa: PLR0911 - as many callbacks
    """Return a callback."""
    match name:
        case "rate":
            return keras.callbacks.LearningRateScheduler(lambda _, rate: rate * 0.9)
        case "plateau":
            return keras.callbacks.ReduceLROnPlateau("val_mae", 0.5, patience=1, min_delta=0.5)
        case "early":
            return keras.callbacks.EarlyStopping(patience=2, min_delta=0.5)
        case "best":
            return keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True)
        case "saved":
            return keras.callbacks.ModelCheckpoint(
                "best.weights.h5", save_best_only=True, save_weights_only=True
            )
        case "wild":
            return Wild()
        case "freezing":
            return Freezing()
        case _:
            return Iterating()


def warm_up() -> None:
    """Train once before all trials."""
    warmed(network, INPUTS, TARGETS)


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    with rk.init() as run:
        model = network()
        callbacks = {name: make(name) for name in order["callbacks"]}
        ours = Burning(run, batch_size=6)
        ours.fuse = Fuse(order["moment"], run.checkpoint.wait)
        history = model.fit(
            INPUTS,
            TARGETS,
            batch_size=6,
            epochs=9,
            validation_data=(INPUTS, TARGETS),
            callbacks=[*callbacks.values(), ours],
            verbose=0,
        )
        return {
            "weights": digest_of(model),
            "rate": float(model.optimizer.learning_rate),
            "drawn": random.random(),  # noqa: S311 - the generator's state
            "history": history.history,
            "epochs": history.epoch,
            "states": {
                name: each.told() if isinstance(each, Wild) else _told(each)
                for name, each in callbacks.items()
            },
        }


def _told(callback: Any) -> dict[str, Any]:
    names = ("wait", "cooldown_counter", "best", "best_epoch", "stopped_epoch")
    return {name: float(vars(callback)[name]) for name in names if name in vars(callback)}
