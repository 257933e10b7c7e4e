"""What a training keeps in its checkpoints, sorted by how it is written.

Variables lie in TensorFlow's own checkpoint, in what `tf.train.Checkpoint` tracks: models,
modules, optimizers, variables, `tf.random.Generator`s. Some are not the same on every rank, or are
not tracked: the states of generators (Keras' layers have their own) and of Keras' metrics. Those
are a rank's *own*. Whatever else has `state_dict` and `load_state_dict` is asked for its state.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from rung.training.errors import NotResumable

_SEEDS_MAX: Final = 1 << 31
_PHILOX_WORDS: Final = 3


class Kept:
    """The things kept, by name."""

    def __init__(self, keep: Mapping[str, Any], shared: Any = None) -> None:
        """Sort what a script wants to keep, and build optimizers that are not built.

        Args:
            keep: what a script wants to keep.
            shared: the state of the generator that unseeded draws share, where it is known.

        Raises:
            NotResumable: something cannot be kept, or has no variables yet; the message names it.
        """
        self._tracked: Final[dict[str, Any]] = {}
        self.pairs: Final[dict[str, Any]] = {}
        """What has the two methods."""
        self.generators: Final[dict[str, Any]] = {}
        """Python's and NumPy's."""
        self._counted: Final[list[Any]] = []
        self._shared: Final = shared
        for name, value in keep.items():
            self._sort(name, value)
        _build_optimizers(self._tracked)
        self.checkpoint: Final = tf.train.Checkpoint(**self._tracked)
        """What TensorFlow writes and reads."""
        self._parts: Final = list(tf.train.TrackableView(self.checkpoint).descendants())

    @property
    def own(self) -> list[Any]:
        """Variables that each rank has of its own, in an order that is always the same."""
        return [variable for _, variable in self._owned()]

    @property
    def shared(self) -> list[Any]:
        """Variables that are the same on all ranks."""
        own = {id(variable) for variable in self.own}
        return [each for each in self._variables() if id(each) not in own]

    @property
    def untrained(self) -> list[Any]:
        """Shared variables that no gradient moves: each rank's running means and the like."""
        optimizers = [part for part in self._parts if isinstance(part, keras.optimizers.Optimizer)]
        moved = {id(each) for optimizer in optimizers for each in optimizer.variables}
        return [each for each in self.shared if not each.trainable and id(each) not in moved]

    def begin_anew(self, seed: int) -> None:
        """Give a rank states of its own that follow from a seed."""
        for number, (kind, variable) in enumerate(self._owned()):
            if kind == "metric":
                variable.assign(tf.zeros(variable.shape, variable.dtype))
            elif kind == "seed":
                variable.assign([(seed + number) % _SEEDS_MAX, 0])
            else:
                algorithm = "philox" if variable.shape[0] == _PHILOX_WORDS else "threefry"
                following = (seed + number) % _SEEDS_MAX
                fresh = tf.random.Generator.from_seed(following, alg=algorithm)
                variable.assign(fresh.state)
        for number, generator in enumerate(self.generators.values()):
            if isinstance(generator, random.Random):
                generator.seed(seed + number)
            else:
                fresh_bits = type(generator.bit_generator)(seed + number)
                generator.bit_generator.state = fresh_bits.state

    def _sort(self, name: str, value: Any) -> None:
        if isinstance(value, keras.layers.Layer) and not value.built:
            raise NotResumable(
                f"keep={{{name!r}: …}}: the model has no weights yet; build it before, by "
                "model.build(shape) or by calling it once"
            )
        if hasattr(tf.train.Checkpoint, name):
            raise NotResumable(f"keep={{{name!r}: …}}: choose another name; TensorFlow uses this")
        pair = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
        if isinstance(value, random.Random | np.random.Generator):
            self.generators[name] = value
        elif isinstance(value, keras.metrics.Metric | keras.random.SeedGenerator):
            self._counted.append(value)
        elif _is_tracked(value):
            self._tracked[name] = value
            if pair:
                self.pairs[name] = value
        elif pair:
            self.pairs[name] = value
        else:
            raise NotResumable(
                f"keep={{{name!r}: …}}: a {type(value).__name__} cannot be kept; give it the "
                "methods state_dict() and load_state_dict(state), or keep what TensorFlow "
                "tracks: variables, modules, models, optimizers"
            )

    def _owned(self) -> Iterator[tuple[str, Any]]:
        """Yield the rank's own variables and what they are."""
        yield "generator", tf.random.get_global_generator().state
        if self._shared is not None:
            yield "seed", self._shared
        for part in self._parts:
            if isinstance(part, tf.random.Generator):
                yield "generator", part.state
        known = {id(variable) for variable in self._variables()}
        for part in self._parts:
            if isinstance(part, keras.layers.Layer):
                others = [each for each in part.variables if id(each) not in known]
                known |= {id(each) for each in others}
                yield from (_kind(each) for each in others)
        for part in self._counted:
            if isinstance(part, keras.random.SeedGenerator):
                yield "seed", part.state
            else:
                yield from (("metric", each) for each in part.variables)

    def _variables(self) -> Iterable[Any]:
        return (part for part in self._parts if isinstance(part, tf.Variable | keras.Variable))


def _kind(variable: Any) -> tuple[str, Any]:
    """Return what a variable of a Keras model is that TensorFlow does not track."""
    return ("seed" if "seed_generator" in variable.path else "metric"), variable


def _is_tracked(value: Any) -> bool:
    try:
        tf.train.Checkpoint(value=value)
    except ValueError:
        return False
    return True


def _build_optimizers(tracked: Mapping[str, Any]) -> None:
    """Have a Keras optimizer make its variables, as a checkpoint needs them to be there."""
    optimizers = {n: v for n, v in tracked.items() if isinstance(v, keras.optimizers.Optimizer)}
    waiting = {name: each for name, each in optimizers.items() if not each.built}
    if not waiting:
        return
    if len(optimizers) > 1:
        raise NotResumable(
            f"keep: the optimizers {', '.join(waiting)} have no variables yet; with several of "
            "them, say what each trains: optimizer.build(model.trainable_variables)"
        )
    trained = [
        variable
        for name, part in tracked.items()
        if name not in optimizers
        for variable in _trainable(part)
    ]
    for optimizer in waiting.values():
        optimizer.build(trained)


def _trainable(part: Any) -> list[Any]:
    if isinstance(part, tf.Variable | keras.Variable):
        return [part] if part.trainable else []
    return list(getattr(part, "trainable_variables", []))
