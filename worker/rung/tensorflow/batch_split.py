"""A rank's part of a batch of all ranks: parts are disjoint, and may be uneven."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf

from rung.training import shares
from rung.training.errors import NotResumable

_NEARLY: Final = 1e-4
"""How much the numbers that tell batches apart may differ between machines."""
_NUMBERS: Final = "biuf"


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


def fingerprint(batch: Any) -> float:
    """Return a number that tells a batch from another: of its targets, if it has some.

    Inputs may be augmented by what a rank draws; strings are left out.
    """
    targets = batch[1] if isinstance(batch, tuple | list) and len(batch) > 1 else batch
    total = 0.0
    for leaf in tf.nest.flatten(targets):
        rows = np.asarray(leaf)
        if rows.dtype.kind in _NUMBERS and rows.size and rows.ndim:
            each = np.nan_to_num(rows.astype(np.float64)).reshape(len(rows), -1).sum(1)
            total += float(each @ np.arange(1, len(rows) + 1))
    return total


def refuse_apart(each: Sequence[Sequence[float]], data: str) -> None:
    """Refuse batches that are not the same on all ranks.

    Args:
        each: the fingerprints of the batches of each rank.
        data: `training` or `validation`, for the message.

    Raises:
        NotResumable: they differ.
    """
    if len({len(said) for said in each}) == 1:
        every = np.asarray(each)
        apart = every.max(0) - every.min(0)
        if not (apart > _NEARLY * (1.0 + np.abs(every).max(0))).any():
            return
    raise NotResumable(
        f"the {data} batches of the slots differ: each slot reads the data as one process would,"
        " and Rung shares them, so that data that are shared already would be cut twice. Leave"
        " .shard(…) and options.deterministic = False out, and let their order follow from the"
        " seeds alone; or set resources.slots_per_trial: 1"
    )


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
