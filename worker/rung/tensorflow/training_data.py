"""The training data and the position in them: a tf.data pipeline, or batches that Python makes."""

from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from rung.tensorflow.batches import Batches
from rung.training.errors import NotResumable


class Source(Protocol):
    """Batches, epoch by epoch, from any position."""

    def open(self, epoch: int, batch: int, total: int, folder: Path | None) -> None:
        """Go to a batch of an epoch.

        Args:
            epoch: its number, from 0.
            batch: how many of its batches were trained.
            total: how many batches were trained in all epochs.
            folder: of a checkpoint whose position this is; None where an epoch begins.
        """

    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the epoch is over.
        """

    def over(self, *, look: bool) -> bool:
        """Return whether the epoch is over; a look ahead finds that out where no number tells."""

    def save(self, folder: Path, *, within: bool) -> None:
        """Write the position into a folder, as it was before any look ahead."""


def source_of(data: Any, seed: int, per_epoch: int | None, *, exactly: bool = True) -> Source:
    """Return the source that data are.

    Args:
        data: a tf.data.Dataset, a function of the epoch that returns batches, or batches.
        seed: of the trial.
        per_epoch: how many batches make an epoch of a data set without end.
        exactly: whether a position within an epoch is to be set.

    Raises:
        NotResumable: they cannot be read twice, or not in this way.
    """
    if isinstance(data, tf.data.Dataset):
        if not exactly:
            return Batches(lambda _epoch: _Pass(data, per_epoch), seed)
        from rung.tensorflow.exact import Pipeline  # noqa: PLC0415 - checks TensorFlow

        return Pipeline(data, per_epoch)
    if per_epoch is not None:
        raise NotResumable("batches_per_epoch is for a tf.data.Dataset without an end")
    if callable(data):
        return Batches(data, seed)
    numbered = isinstance(data, Sized) and hasattr(data, "__getitem__")
    if numbered or (isinstance(data, Iterable) and not isinstance(data, Iterator)):
        return Batches(lambda _epoch: data, seed)
    raise NotResumable(
        f"the data are a {type(data).__name__}, which can be read once at most: give a "
        "tf.data.Dataset, or a function of the epoch that returns its batches"
    )


class _Pass:
    """One pass over a tf.data pipeline, from its beginning."""

    def __init__(self, data: Any, per_epoch: int | None) -> None:
        length = int(data.cardinality())
        if per_epoch is None and length == tf.data.INFINITE_CARDINALITY:
            raise NotResumable("the data set has no end: give batches_per_epoch")
        self._data = data if per_epoch is None else data.take(per_epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data)
