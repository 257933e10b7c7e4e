"""A Keras trial with dropout, batch normalisation, a schedule of patience, and several sources.

Its step draws noise without a seed: Keras makes a generator for that at its first use.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from rung import keras as rk
from support.fuse import Fuse, after, before, out
from support.trial_notes import Notes

INPUTS = np.linspace(-1, 1, 18 * 3, dtype="float32").reshape(18, 3)
TARGETS = (INPUTS[:, :1] ** 2).astype("float32")


class Burning(rk.Callback):
    """Asks the fuse before and after what Rung does at a batch."""

    fuse = Fuse(None)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """One more batch."""
        progress = self._tracker.progress
        trained = batch + 1 > progress.batch_in_epoch
        if trained:
            self.fuse.reach(before(progress.batches + 1))
        super().on_train_batch_end(batch, logs)
        if trained:
            self.fuse.reach(after(progress.batches))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """One more epoch."""
        super().on_epoch_end(epoch, logs)
        self.fuse.reach(out(self._tracker.progress.epochs))


class Noisy(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
    """Three batches with noise from Python's and NumPy's generators.

    Their order is changed at either end of an epoch, and with it whatever follows.
    """

    def __init__(self, inputs: Any, targets: Any, size: int) -> None:
        super().__init__()
        self._inputs, self._targets, self._size = inputs, targets, size
        self._order = [0, 1, 2]

    def on_epoch_begin(self) -> None:
        """Draw an order from Python's generator."""
        random.shuffle(self._order)

    def on_epoch_end(self) -> None:
        """Draw an order from NumPy's."""
        np.random.shuffle(self._order)  # noqa: NPY002 - as scripts do

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        """Return a batch with fresh noise."""
        index = self._order[index]
        part = slice(self._size * index, self._size * (index + 1))
        noise = 0.1 * random.random() + 0.1 * float(np.random.rand())  # noqa: NPY002, S311
        return self._inputs[part] + noise, self._targets[part]


def source(name: str) -> dict[str, Any]:
    """Return what to give `fit`."""
    match name:
        case "arrays":
            return {"x": INPUTS, "y": TARGETS, "batch_size": 6}
        case "shuffled" | "endless" | "untold" | "generated":
            return pipeline(name)
        case "loader":
            from torch.utils.data import DataLoader  # noqa: PLC0415 - as above

            pairs = list(zip(INPUTS, TARGETS, strict=True))
            return {"x": DataLoader(pairs, batch_size=6, shuffle=True)}  # type: ignore[arg-type]
        case _:
            return {"x": Noisy(INPUTS, TARGETS, 6)}


def pipeline(name: str) -> dict[str, Any]:
    """Return a tf.data pipeline: shuffled, endless, of untold length, or made by Python."""
    import tensorflow as tf  # noqa: PLC0415 - where it is asked for

    data = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS)).shuffle(18).batch(6)
    if name == "untold":
        return {"x": data.filter(lambda *_: True)}
    if name == "endless":
        return {"x": data.repeat(), "steps_per_epoch": 3}
    if name == "generated":
        pairs = list(zip(INPUTS, TARGETS, strict=True))
        made = tf.data.Dataset.from_generator(
            lambda: iter(pairs), output_signature=data.element_spec
        )
        return {"x": made.repeat(), "steps_per_epoch": 3}
    return {"x": data}


class Shaken(keras.Sequential):  # type: ignore[misc]  # as above
    """Trains with noise in the inputs, from the generator that Keras keeps for all."""

    def train_step(self, data: Any) -> Any:
        """Train on a batch with noise."""
        inputs, targets = data
        noise = 0.1 * keras.random.normal(keras.ops.shape(inputs))
        return super().train_step((inputs + noise, targets))


def _forever() -> Iterator[Any]:
    while True:
        yield INPUTS, TARGETS


def network() -> Any:
    """Return a compiled model."""
    model = Shaken(
        [
            keras.layers.Input((3,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.AdamW(0.05), "mse", metrics=["mae"], jit_compile=False)
    return model


def warmed(make: Callable[[], Any], inputs: Any, targets: Any) -> None:
    """Pay once for what is imported at first use; TensorFlow itself must not run before a fork."""
    if keras.backend.backend() == "torch":
        keras.utils.set_random_seed(0)
        make().fit(inputs, targets, validation_data=(inputs, targets), verbose=0)


def digest_of(model: Any) -> str:
    """Return a digest of a model's weights and of what its optimizer keeps."""
    kept = [*model.get_weights(), *(each.numpy() for each in model.optimizer.variables)]
    return hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in kept)).hexdigest()


def warm_up() -> None:
    """Train once before all trials."""
    warmed(network, INPUTS, TARGETS)


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    with rk.init() as run:
        notes = Notes(run, order)
        model = network()
        patience = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0)
        ours = Burning(
            run, validation_data=(INPUTS, TARGETS), batch_size=6, keep={"patience": patience}
        )
        ours.fuse = Fuse(order["moment"], run.checkpoint.wait)
        begin = {"initial_epoch": ours.initial_epoch()} if order.get("told") else {}
        model.fit(
            **source(order["source"]) | begin | order.get("fit", {}),
            epochs=order.get("epochs", 3),
            validation_data=_forever() if order.get("generator") else (INPUTS, TARGETS),
            callbacks=[patience, ours],
            verbose=0,
        )
        if order.get("twice"):
            model.fit(INPUTS, TARGETS, callbacks=[rk.Callback(run, batch_size=6)], verbose=0)
        drawn = random.random()  # noqa: S311 - the generator's state
        return {"weights": digest_of(model), "drawn": drawn} | notes.told()
