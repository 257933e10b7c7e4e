"""A training's state as files of a checkpoint, and back.

    variables.*        what `tf.train.Checkpoint` tracks: `tf.train.Checkpoint(…).read` reads it
    own.npz            what each rank has of its own, and arrays of what is kept
    training.json      generators of each rank, means not reported yet, what two methods gave

Nothing of it is unpickled. Other ranks than the chief write nothing, and tell it what is theirs.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from rung import core
from rung.tensorflow.checkpoint_items import Kept
from rung.tensorflow.serialization import packed, unpacked
from rung.training import rng
from rung.training.averages import merged
from rung.training.errors import NotResumable

_VARIABLES: Final = "variables"
_ARRAYS: Final = "own.npz"
_NUMBERS: Final = "training.json"


class Resumed:
    """What a checkpoint of this trial says about its moment."""

    def __init__(self, folder: Path, ranks: core.DistributedContext) -> None:
        numbers = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
        with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
            self._arrays: Final = dict(arrays.items())
        self._pairs: Final[dict[str, Any]] = numbers["pairs"]
        own = numbers["ranks"]
        as_many = len(own) == ranks.size
        self._rank: Final = ranks.rank if as_many else 0
        self._mine: Final = own[self._rank] if as_many or ranks.is_chief else None
        self.averages: Final = _averages_of(numbers, self._mine, ranks, as_many=as_many)
        """Means over the batches since the last report."""

    def set_pairs(self, kept: Kept) -> None:
        """Give what has the two methods its state back."""
        for name, each in kept.pairs.items():
            if name in self._pairs:
                each.load_state_dict(unpacked(self._pairs[name], self._arrays))

    def set_own(self, kept: Kept) -> bool:
        """Set what this rank has of its own; return whether the checkpoint had it.

        Raises:
            NotResumable: it had more, or less.
        """
        mine = self._mine
        if mine is None:
            return False
        prefix, own = f"rank-{self._rank}/", kept.own
        held = sum(name.removeprefix(prefix).isdecimal() for name in self._arrays)
        if held != len(own):
            raise NotResumable(
                f"the checkpoint holds {held} states of generators and Keras metrics for this "
                f"rank, and the script keeps {len(own)}: make all that is kept before the loop "
                "begins, the same in every run"
            )
        for number, variable in enumerate(own):
            variable.assign(self._arrays[f"{prefix}{number}"])
        for name, generator in kept.generators.items():
            _set_generator(generator, unpacked(mine["named"][name], self._arrays))
        return True

    @property
    def generators(self) -> rng.Generators | None:
        """The global generators of this rank; None where the checkpoint has none for it."""
        return None if self._mine is None else rng.from_json(self._mine["generators"])


def write(
    folder: Path,
    kept: Kept,
    ranks: core.DistributedContext,
    averages: Mapping[str, Any],
    generators: rng.Generators,
) -> None:
    """Write the state of this moment; all ranks must call this.

    Args:
        folder: where to.
        kept: what is kept.
        ranks: those that train together.
        averages: of this rank, not reported yet.
        generators: the global ones of this rank.
    """
    arrays: dict[str, Any] = {}
    place = f"rank-{ranks.rank}/named"
    mine = {
        "generators": rng.to_json(generators),
        "averages": dict(averages),
        "named": {
            name: packed(_state_of(each), f"{place}/{name}", arrays)
            for name, each in kept.generators.items()
        },
    }
    for number, variable in enumerate(kept.own):
        arrays[f"rank-{ranks.rank}/{number}"] = tf.convert_to_tensor(variable).numpy()
    together = ranks.gather((mine, arrays))
    if together is None:
        return
    every: dict[str, Any] = {name: each for _, part in together for name, each in part.items()}
    numbers = {
        "ranks": [own for own, _ in together],
        "pairs": {
            name: packed(each.state_dict(), f"kept/{name}", every)
            for name, each in kept.pairs.items()
        },
    }
    kept.checkpoint.write(str(folder / _VARIABLES))
    np.savez(folder / _ARRAYS, **every)
    (folder / _NUMBERS).write_text(json.dumps(numbers), encoding="utf-8")


def load_variables(folder: Path, kept: Kept, *, exactly: bool) -> None:
    """Take variables from a checkpoint.

    Args:
        folder: where it is.
        kept: what is kept.
        exactly: whether it must hold what is kept, no less and no more; of another trial's
            checkpoint each rank takes no state of generators.

    Raises:
        NotResumable: the checkpoint holds other variables than the script keeps.
    """
    own = [] if exactly else [(each, tf.identity(each)) for each in kept.own]
    status = kept.checkpoint.read(str(folder / _VARIABLES))
    try:
        if exactly:
            status.assert_consumed()
        else:
            status.assert_existing_objects_matched().expect_partial()
    except AssertionError as error:
        raise NotResumable(
            f"the checkpoint does not fit what the script keeps: {str(error).strip()}; what is "
            "kept must have all its variables before the loop begins, the same in every run"
        ) from error
    for variable, value in own:
        variable.assign(value)


def _averages_of(
    numbers: Mapping[str, Any],
    mine: Mapping[str, Any] | None,
    ranks: core.DistributedContext,
    *,
    as_many: bool,
) -> Mapping[str, Any]:
    """Return the means to go on from: of this rank, or, on another number, all at the chief."""
    if as_many and mine is not None:
        own: Mapping[str, Any] = mine["averages"]
        return own
    if not ranks.is_chief:
        return {"sums": {}, "counts": {}}
    return merged([each["averages"] for each in numbers["ranks"]])


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return dict(generator.bit_generator.state)


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state
