"""A rank's part of a batch of all ranks: parts are disjoint, and may be uneven."""

from typing import Any, NamedTuple

import tensorflow as tf

from rung.training import shares
from rung.training.errors import NotResumable


class Part(NamedTuple):
    """What a rank gets of a batch."""

    batch: Any
    own: int
    """How many of its records count. A rank without any gets one all the same, for it must
    compute as the others do."""
    whole: int
    """How many records the batch of all ranks holds."""

    @property
    def share(self) -> float:
        """How much of the batch this is."""
        return self.own / self.whole if self.whole else 0.0


def part_of(batch: Any, rank: int, size: int) -> Part:
    """Return a rank's part of a batch."""
    whole = records_of(batch)
    if size == 1:
        return Part(batch, whole, whole)
    part = shares.Part(rank, size)
    given = part.given(whole)
    own = tf.nest.map_structure(lambda each: each[given], batch)
    return Part(own, part.count(whole), whole)


def records_of(batch: Any) -> int:
    """Return how many records a batch holds: the first dimension of its tensors.

    Raises:
        NotResumable: they do not agree, or one has none.
    """
    found = {_length(each) for each in tf.nest.flatten(batch)}
    if len(found) != 1 or None in found:
        said = ", ".join(str(each) for each in tf.nest.flatten(batch, expand_composites=False))
        raise NotResumable(
            "a batch is a tensor, an array, or a tuple or dict of them, and their first dimension "
            f"counts its records; this one's cannot be counted: {said[:200]}"
        )
    return int(found.pop() or 0)


def _length(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    return None if shape is None or len(shape) == 0 else int(shape[0])
