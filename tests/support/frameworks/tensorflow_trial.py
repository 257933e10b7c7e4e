"""A TensorFlow trial with a loop of its own: dropout, noise, patience, and several sources.

plain        variables, momentum by hand, a `tf.random.Generator`, and no Keras at all
change       a variable that training changes beside what is kept: see `Aside`
own          the script connects the ranks itself, by what their launcher set
late         a rank that never comes to TensorFlow
"""

import hashlib
import os
import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rung import core
from rung import tensorflow as rt
from support.fuse import Fuse, after, before
from support.late_rank import stays_away
from support.trial_notes import Notes

INPUTS = np.linspace(-1, 1, 22 * 3, dtype="float32").reshape(22, 3)
TARGETS = (INPUTS[:, :1] ** 2).astype("float32")
_CHANCE = np.random.default_rng


class Patience:
    """Keeps numbers that are the same on all slots: state by two methods."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.best = np.full(2, np.inf)

    def note(self, number: float) -> None:
        """Take one."""
        self.seen.append(number)
        self.best = np.minimum(self.best, [number, abs(number)])

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"seen": self.seen, "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state back."""
        self.seen, self.best = state["seen"], state["best"]


def noisy(epoch: int) -> Iterator[Any]:
    """Yield batches in a random order with noise from Python's generator."""
    order = np.random.permutation(len(INPUTS))  # noqa: NPY002 - the global one
    for start in range(0, len(order), 8):
        part = order[start : start + 8]
        noise = np.float32(0.1 * random.random() + 0.01 * epoch)  # noqa: S311 - as above
        yield INPUTS[part] + noise, TARGETS[part]


def drawing() -> Iterator[Any]:
    """Yield records with noise, for a pipeline that cannot tell its state."""
    for inputs, targets in zip(INPUTS, TARGETS, strict=True):
        yield inputs + np.float32(0.1 * random.random()), targets  # noqa: S311 - as above


def source(name: str) -> Any:
    """Return the data, three batches an epoch, the last of 6 records."""
    data = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS))
    match name:
        case "shuffled":
            return data.shuffle(22).batch(8).prefetch(2)
        case "unknown":
            return data.shuffle(22).filter(lambda x, y: True).batch(8)
        case "endless":
            data = tf.data.Dataset.counter().map(lambda at: (_row(INPUTS, at), _row(TARGETS, at)))
            return data.shuffle(30).batch(8)
        case "python":
            shapes = tf.TensorSpec(3, tf.float32), tf.TensorSpec(1, tf.float32)
            return tf.data.Dataset.from_generator(drawing, output_signature=shapes).batch(8)
        case "listed" | "sharded":
            if name == "sharded":
                data = data.shard(2, int(os.environ["RUNG_RANK"]))
            return list(data.batch(8).as_numpy_iterator())
        case _:
            return noisy


def _row(table: Any, number: Any) -> Any:
    return tf.gather(table, number % len(table))


class Network(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
    """A network of plain variables, trained by hand."""

    def __init__(self) -> None:
        chance = tf.random.get_global_generator()
        self.inner = tf.Variable(chance.normal((3, 8)))
        self.outer = tf.Variable(chance.normal((8, 1)))
        self.speeds = [tf.Variable(tf.zeros_like(each)) for each in (self.inner, self.outer)]
        self.generator = tf.random.Generator.from_seed(9)

    @property
    def weights(self) -> list[Any]:
        """What is trained."""
        return [self.inner, self.outer]

    def __call__(self, inputs: Any, *, training: bool) -> Any:
        """Compute, with noise in training."""
        hidden = tf.tanh(inputs @ self.inner)
        if training:
            hidden *= self.generator.uniform(tf.shape(hidden), 0.5, 1.5)
            hidden += 0.1 * tf.random.get_global_generator().normal(tf.shape(hidden))
        return hidden @ self.outer

    def apply(self, gradients: list[Any]) -> None:
        """Take a step with momentum."""
        for weight, speed, gradient in zip(self.weights, self.speeds, gradients, strict=True):
            speed.assign(0.9 * speed - 0.05 * gradient)
            weight.assign_add(speed)


class Layered:
    """The same of Keras' layers and optimizer."""

    def __init__(self, noise: float) -> None:
        self.noise = 0.25 * noise
        self.model = keras.Sequential(
            [
                keras.layers.Input((3,)),
                keras.layers.Dense(8),
                keras.layers.BatchNormalization() if noise else keras.layers.ReLU(),
                keras.layers.Dropout(noise),
                keras.layers.Dense(1),
            ]
        )
        self.optimizer = keras.optimizers.AdamW(0.05)
        self.weights = self.model.trainable_variables

    def __call__(self, inputs: Any, *, training: bool) -> Any:
        """Compute, in training with noise from the generator that Keras keeps for all."""
        if training:
            inputs += self.noise * keras.random.normal(tf.shape(inputs))
        return self.model(inputs, training=training)

    def apply(self, gradients: list[Any]) -> None:
        """Take a step."""
        self.optimizer.apply(gradients, self.weights)


def square(outputs: Any, targets: Any) -> Any:
    """Return the mean error."""
    return tf.reduce_mean(tf.square(outputs - targets))


class Aside:
    """Variables of the script: a frozen one, one of the validation, and one that changes.

    average      a running mean of the loss
    late         the same, made by the first step
    noise        a generator
    told         the same as `average`, kept by two methods
    """

    def __init__(self, change: str | None) -> None:
        self.change = change
        self.frozen = tf.Variable(tf.ones(3))
        self.validated = keras.metrics.Mean()
        self.average: Any = None if change in {None, "late"} else tf.Variable(0.0, name="average")
        self.generator = tf.random.Generator.from_seed(4) if change == "noise" else None

    def train(self, loss: Any) -> Any:
        """Change what the step changes; return the loss with it."""
        if self.change is None:
            return loss
        if self.generator is not None:
            return loss + self.generator.normal(())
        if self.average is None:
            self.average = tf.Variable(0.0, name="late_average")
        self.average.assign(0.9 * self.average + 0.1 * loss)
        return loss + self.average

    def validate(self, number: float) -> float:
        """Return what a metric that only the validation has makes of a number."""
        self.validated.reset_state()
        self.validated.update_state(number)
        return float(self.validated.result())

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"average": float(self.average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state back."""
        self.average.assign(state["average"])


class Trial:
    """The training, its parts, and a fuse."""

    def __init__(self, run: Any, order: dict[str, Any]) -> None:
        self.fuse = Fuse(order.get("moment"), run.checkpoint.wait)
        plain = order.get("plain", False)
        self.network: Any = Network() if plain else Layered(order.get("noise", 0.4))
        self.still = order["source"] == "python"
        """Whether only the data draw from Python's generator."""
        self.patience, self.chance = Patience(), _CHANCE(3)
        self.aside = Aside(order.get("change"))
        self.total = keras.metrics.Mean()
        network = self.network
        kept = {"network": network} if plain else {"model": network.model}
        kept |= {} if plain else {"optimizer": network.optimizer}
        kept |= {"aside": self.aside} if self.aside.change == "told" else {}
        endless = order["source"] == "endless"
        self.training = rt.Training(
            run,
            source(order["source"]),
            keep=kept | {"patience": self.patience, "chance": self.chance, "total": self.total},
            validate=self.validate,
            batches_per_epoch=3 if endless else None,
        )

    def validate(self) -> dict[str, float]:
        """Return the mean error over uneven batches."""
        data = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS)).batch(5)

        def evaluate(inputs: Any, targets: Any) -> dict[str, Any]:
            return {"loss": square(self.network(inputs, training=False), targets)}

        found: dict[str, float] = self.training.mean(data, evaluate)
        return found | {"loss": self.aside.validate(found["loss"])}

    def run(self) -> None:
        """Train."""
        still = self.still

        @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
        def step(inputs: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = square(self.network(inputs, training=True), targets)
            gradients = tape.gradient(loss, self.network.weights)
            self.network.apply(self.training.averaged(gradients))
            return self.aside.train(loss)

        for inputs, targets in self.training:
            self.fuse.reach(before(self.training.step + 1))
            loss = step(inputs, targets)
            self.patience.note(float(tf.reduce_sum(self.network.weights[0])))
            self.total.update_state(loss)
            self.training.report(
                {
                    "loss": loss,
                    "best": self.patience.best[0],
                    "drawn": self.chance.random() + (0.0 if still else random.random()),  # noqa: S311
                    "total": self.total,
                }
            )
            self.fuse.reach(after(self.training.step + 1))


def connected() -> dict[str, Any]:
    """Return the sum of the numbers of the ranks, counted from 1, as a strategy makes it."""
    with core.init() as run:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        def total() -> Any:
            own = tf.constant(1.0 + run.distributed.rank)
            return tf.distribute.get_replica_context().all_reduce("SUM", own)

        found = {"total": float(strategy.run(total))}
        run.distributed.barrier()
        return found


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    if "own" in order:
        return connected()
    if stays_away(order):
        return {}
    with rt.init() as run:
        notes = Notes(run, order)
        trial = Trial(run, order)
        trial.run()
        network = trial.network
        kept = network.variables if order.get("plain") else network.model.weights
        optimizer = [] if order.get("plain") else network.optimizer.variables
        parts = [np.asarray(each).tobytes() for each in (*kept, *optimizer)]
        return {
            "weights": hashlib.sha256(b"".join(parts)).hexdigest(),
            "drawn": random.random(),  # noqa: S311 - the generator's state
            "steps": len(trial.patience.seen),
        } | notes.told()
