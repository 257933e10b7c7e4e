"""A Keras trial's state as files of a checkpoint, and back.

    model.weights.h5   weights, layers' states, the optimizer: what `model.load_weights` reads
    training.npz       running sums of metrics, states of seed generators
    keras.json         generators at the moment and at the epoch's beginning; whether a callback
                       has ended the training; where several ranks train, what each draws from
    callbacks.npz      the states of callbacks (`rung.training.states.callback_states`)
    iterator.*         the state of a tf.data iterator, where there is one

Nothing of it is unpickled.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import keras
import numpy as np

from rung import core
from rung.training import rng
from rung.training.errors import NotResumable
from rung.training.seeds import Domain, derive

WEIGHTS: Final = "model.weights.h5"
_ARRAYS: Final = "training.npz"
_NUMBERS: Final = "keras.json"
_METRIC: Final = "metric-"
_SEED_MAX: Final = 0x7FFFFFFF
"""A seed's words are unsigned on TensorFlow, and signed on torch."""


class Resumed:
    """What a checkpoint says about its moment."""

    def __init__(self, folder: Path) -> None:
        numbers = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
        with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
            self.arrays: Final = dict(arrays.items())
        self.now: Final = rng.from_json(numbers["now"])
        self.begun: Final = rng.from_json(numbers["begun"])
        self.stopped: Final[bool] = numbers["stopped"]
        """Whether a callback had ended the training by then."""
        self._chief: Final = Drawing(self.now, numbers["tensorflow"], None)
        self._ranks: Final[list[dict[str, Any]]] = numbers.get("ranks") or []

    @property
    def tensorflow(self) -> list[int] | None:
        """The state of TensorFlow's generator."""
        return self._chief.tensorflow

    def of_rank(self, ranks: core.DistributedContext) -> "Drawing":
        """Return what this rank draws from; the chief's, where there were not as many ranks."""
        if ranks.is_chief or len(self._ranks) != ranks.size:
            return self._chief
        own = self._ranks[ranks.rank]
        return Drawing(rng.from_json(own["now"]), own["tensorflow"], own["seeds"])


class Drawing(NamedTuple):
    """What one rank draws from."""

    now: rng.Generators
    tensorflow: list[int] | None
    seeds: list[list[int]] | None
    """States of the model's seed generators; None: they are among the model's variables."""


def write(  # noqa: PLR0913 - the parts of a checkpoint
    folder: Path,
    model: Any,
    shared: Any,
    *,
    begun: rng.Generators,
    stopped: bool,
    ranks: list[dict[str, Any]],
) -> None:
    """Write the state of this moment.

    Args:
        folder: where to.
        model: the model, compiled and built.
        shared: the state of the generator that unseeded draws share, where it is known.
        begun: the generators when the epoch began.
        stopped: whether a callback has ended the training.
        ranks: what each rank draws from, where there are several.
    """
    model.save_weights(str(folder / WEIGHTS))
    arrays = {name: _numpy(variable) for name, variable in _variables(model, shared)}
    np.savez(folder / _ARRAYS, **arrays)
    numbers: dict[str, Any] = {
        "now": rng.to_json(rng.capture()),
        "begun": rng.to_json(begun),
        "stopped": stopped,
        "tensorflow": _tensorflow_generator(),
    }
    if ranks:
        numbers["ranks"] = ranks
    (folder / _NUMBERS).write_text(json.dumps(numbers), encoding="utf-8")


def of_ranks(ranks: core.DistributedContext, model: Any, shared: Any) -> list[dict[str, Any]]:
    """Return on the chief what each of several ranks draws from; all ranks must call this."""
    if ranks.size == 1:
        return []
    own = {
        "now": rng.to_json(rng.capture()),
        "tensorflow": _tensorflow_generator(),
        "seeds": [[int(word) for word in _numpy(each)] for each in _seeds(model, shared)],
    }
    return ranks.gather(own) or []


def same_generators(ranks: core.DistributedContext) -> rng.Generators:
    """Give every rank the chief's generators and return them: ranks read the same data."""
    own = rng.capture()
    if ranks.size > 1:
        own = rng.from_json(ranks.broadcast(rng.to_json(own)))
        rng.restore(own._replace(cuda=[]))
    return own


def new_seeds(run: core.Context, model: Any, shared: Any, batches: int) -> None:
    """Have what the model draws differ from rank to rank; the chief draws as one process does."""
    ranks = run.distributed
    if ranks.is_chief:
        return
    words = [
        derive(run.seed, Domain.RANK, ranks.rank, batches, index) & _SEED_MAX
        for index, _ in enumerate(_seeds(model, shared))
    ]
    set_seeds(model, shared, [[word, 0] for word in words])


def set_seeds(model: Any, shared: Any, states: list[list[int]]) -> None:
    """Set the states of the model's seed generators.

    Raises:
        NotResumable: there are not as many.
    """
    seeds = _seeds(model, shared)
    if len(seeds) != len(states):
        raise NotResumable(
            f"the checkpoint holds the states of {len(states)} seed generators for this rank, and "
            f"the model has {len(seeds)}: make all layers before fit(), as many in every run"
        )
    for variable, words in zip(seeds, states, strict=True):
        variable.assign(np.array(words, variable.dtype))


def load_weights(folder: Path, model: Any) -> None:
    """Take the weights and the optimizer from a checkpoint."""
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    model.load_weights(str(folder / WEIGHTS))


def set_moment(model: Any, shared: Any, resumed: Resumed, *, within: bool) -> None:
    """Set what belongs to the moment in the model.

    That is seed generators and, within an epoch, the running sums of its metrics.
    """
    for name, variable in _variables(model, shared):
        if name in resumed.arrays and (within or not name.startswith(_METRIC)):
            variable.assign(resumed.arrays[name])


def set_generators(generators: rng.Generators | None, tensorflow: list[int] | None = None) -> None:
    """Set all global generators, as far as states are given."""
    if generators is not None:
        rng.restore(generators)
    if tensorflow is not None:
        import tensorflow as tf  # noqa: PLC0415 - loaded by the backend

        tf.random.get_global_generator().state.assign(tensorflow)


def metric_values(model: Any) -> list[Any]:
    """Return the running sums of the model's metrics."""
    return [_numpy(variable) for variable in model.metrics_variables]


def set_metric_values(model: Any, values: list[Any]) -> None:
    """Set what `metric_values` returned."""
    for variable, value in zip(model.metrics_variables, values, strict=True):
        variable.assign(value)


def _variables(model: Any, shared: Any) -> Iterator[tuple[str, Any]]:
    """Yield the variables that the weights file does not hold, by names of their own."""
    for index, variable in enumerate(model.metrics_variables):
        yield f"{_METRIC}{index}", variable
    weights = {id(variable) for variable in model.weights}
    others = (variable for variable in model.variables if id(variable) not in weights)
    for index, variable in enumerate(others):
        yield f"variable-{index}", variable
    if shared is not None:
        yield "seeds", shared


def _seeds(model: Any, shared: Any) -> list[Any]:
    """Return the states of the seed generators that the model's layers draw from.

    A layer's variables are its weights, states of seed generators, and its metrics'.
    """
    known = {id(each) for each in (*model.weights, *model.metrics_variables)}
    found = {id(each): each for each in model.variables if id(each) not in known}
    return [*found.values(), *([] if shared is None else [shared])]


def _numpy(variable: Any) -> Any:
    return keras.ops.convert_to_numpy(variable.value)


def _tensorflow_generator() -> list[int] | None:
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf  # noqa: PLC0415 - loaded by the backend

    return [int(word) for word in tf.random.get_global_generator().state.numpy()]
