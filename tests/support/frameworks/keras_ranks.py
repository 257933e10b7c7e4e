"""A Keras trial for any number of ranks: 17 records in batches of 8, so the last one holds one.

noise      dropout, batch normalisation, noise in the step and in the data, so that ranks draw
source     arrays, or `dataset` (tf.data, shuffled), `sudden` (the same, which does not tell its
           length), `noisy` (a PyDataset), `apart` (arrays in an order that differs by rank)
validated  `apart`: validation data in an order that differs by rank
loss       how the loss is reduced
pair       a step of the model's own with two optimizers: in a `dict` of the model, or `outside`
late       a rank that never comes to TensorFlow
logs       whether to tell what `fit` returned, which begins where the run did, and how processes
           of TensorFlow wait for each other
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from rung import keras as rk
from support.frameworks.keras_trial import Burning, Noisy, Shaken, digest_of, warmed
from support.fuse import Fuse
from support.late_rank import stays_away

INPUTS = np.linspace(-1, 1, 17 * 3, dtype="float32").reshape(17, 3) ** np.array([1, 2, 3], "f4")
TARGETS = np.sin(INPUTS.sum(1, keepdims=True)).astype("float32")


def source(name: str) -> dict[str, Any]:
    """Return what to give `fit`."""
    match name:
        case "dataset" | "sudden":
            import tensorflow as tf  # noqa: PLC0415 - where it is asked for

            data = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS)).shuffle(17).batch(8)
            return {"x": data.filter(lambda *_: True) if name == "sudden" else data}
        case "noisy":
            return {"x": Noisy(INPUTS, TARGETS, 8)}
        case "apart":
            order = np.roll(np.arange(17), int(os.environ["RUNG_RANK"]))
            return {"x": INPUTS[order], "y": TARGETS[order], "batch_size": 8, "shuffle": False}
        case _:
            return {"x": INPUTS, "y": TARGETS, "batch_size": 8}


class Pair(keras.Sequential):  # type: ignore[misc]  # as above
    """Trains each of its two layers with an optimizer of its own."""

    def hold(self, *, inside: bool) -> None:
        """Make the optimizers."""
        pair = {"low": keras.optimizers.Adam(0.05), "high": keras.optimizers.SGD(0.05)}
        for optimizer, layer in zip(pair.values(), self.layers, strict=True):
            optimizer.build(layer.trainable_variables)
        self.held: Any = pair if inside else SimpleNamespace(pair=pair)

    def train_step(self, data: Any) -> Any:
        """Train on a batch."""
        inputs, targets = data
        variables = self.trainable_variables
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf  # noqa: PLC0415 - where it is asked for

            with tf.GradientTape() as tape:
                loss = self.compute_loss(inputs, targets, self(inputs, training=True))
            self.descend(tape.gradient(loss, variables))
        else:
            import torch  # noqa: PLC0415 - as above

            self.zero_grad()
            loss = self.compute_loss(inputs, targets, self(inputs, training=True))
            loss.backward()
            with torch.no_grad():
                self.descend([variable.value.grad for variable in variables])
        return {"loss": loss}

    def descend(self, gradients: list[Any]) -> None:
        """Take a step with each optimizer."""
        held, variables = self.held, self.trainable_variables
        pair = held.pair if isinstance(held, SimpleNamespace) else held
        pair["low"].apply(gradients[:2], variables[:2])
        pair["high"].apply(gradients[2:], variables[2:])


def paired(*, inside: bool) -> Any:
    """Return a compiled model with two optimizers."""
    layers = keras.layers
    model = Pair([layers.Input((3,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    model.hold(inside=inside)
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=False)
    return model


def network(*, noise: bool, loss: str) -> Any:
    """Return a compiled model."""
    layers = [keras.layers.Input((3,)), keras.layers.Dense(8, activation="tanh")]
    if noise:
        layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.4)]
    kind = Shaken if noise else keras.Sequential
    model = kind([*layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.AdamW(0.05, clipnorm=0.5)
    chosen = keras.losses.MeanSquaredError(reduction=loss)
    model.compile(optimizer, chosen, metrics=["mae"], jit_compile=False)
    return model


def warm_up() -> None:
    """Train once before all trials."""
    warmed(lambda: network(noise=True, loss="mean"), INPUTS, TARGETS)


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a rank."""
    if stays_away(order):
        return {}
    with rk.init() as run:
        if "pair" in order:
            model = paired(inside=order["pair"] == "dict")
        else:
            model = network(
                noise=order.get("noise", False), loss=order.get("loss", "sum_over_batch_size")
            )
        patience = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0)
        turned = run.distributed.rank if order.get("validated") == "apart" else 0
        validation = np.roll(INPUTS, turned, 0), np.roll(TARGETS, turned, 0)
        ours = Burning(
            run,
            validation_data=validation,
            batch_size=order.get("told", 8),
            keep={"patience": patience},
        )
        ours.fuse = Fuse(order["moment"], run.checkpoint.wait)
        history = model.fit(
            **source(order.get("source", "arrays")),
            epochs=3,
            validation_data=validation,
            validation_batch_size=5,
            callbacks=[patience, ours],
            verbose=0,
        )
        found: dict[str, Any] = {"weights": digest_of(model)}
        ranks = run.distributed
        Path(f"trained-{ranks.rank}").touch()
    if not order.get("logs"):
        return found
    waiting = together(ranks.size) if keras.backend.backend() == "tensorflow" else {}
    return found | {"logs": history.history} | waiting


def together(size: int) -> dict[str, Any]:
    """Return how long a process may be silent, and whether all have trained when one leaves."""
    from tensorflow.python.eager import context  # noqa: PLC0415 - not public, and TensorFlow's

    service = context.context().coordination_service
    return {
        "patience": service and service.heartbeat_timeout_in_ms,
        "left_together": all(Path(f"trained-{rank}").exists() for rank in range(size)),
    }
