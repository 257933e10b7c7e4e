"""Batches that Python makes, and the position in them.

They are read again up to the position. What makes them draws from the global generators as if
these were its own: they are seeded for each epoch from the trial's seed, and set aside while
anything else runs. So the batches are the same in every run, and on every rank.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from rung.training import rng
from rung.training.errors import NotResumable
from rung.training.seeds import Domain, derive


class Batches:
    """The batches of a function of the epoch."""

    def __init__(self, epochs: Callable[[int], Iterable[Any]], seed: int) -> None:
        self._epochs = epochs
        self._seed = seed
        self._own: rng.Generators | None = None
        self._batches: Iterator[Any] = iter(())
        self._length: int | None = None
        self._read = 0
        self._looked: list[Any] = []

    def open(self, epoch: int, batch: int, total: int, folder: Path | None) -> None:  # noqa: ARG002 - a pipeline's
        """Go to a batch of an epoch."""
        self._own = rng.from_seed(derive(self._seed, Domain.PYTHON_BATCHES, epoch))
        self._read = 0
        with self._apart():
            batches = self._epochs(epoch)
            if isinstance(batches, tf.data.Dataset):
                raise NotResumable("give the tf.data.Dataset itself, not a function of the epoch")
            self._length = len(batches) if isinstance(batches, Sized) else None
            self._batches = _each(batches)
        for _ in range(batch):
            self.next()

    def next(self) -> Any:
        """Return the next batch."""
        if self._looked:
            found = self._looked.pop()
        else:
            with self._apart():
                found = next(self._batches)
        self._read += 1
        return found

    def over(self, *, look: bool) -> bool:
        """Return whether the epoch is over."""
        if self._length is not None:
            return self._read >= self._length
        if look and not self._looked:
            with self._apart():
                self._looked.extend(_at_most_one(self._batches))
            return not self._looked
        return False

    def save(self, folder: Path, *, within: bool) -> None:
        """The numbers of the epoch and the batch say all."""

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Run a block with the generators of the data."""
        assert self._own is not None
        with rng.preserved():
            rng.restore(self._own)
            yield
            self._own = rng.capture()


def _each(batches: Iterable[Any]) -> Iterator[Any]:
    """Return the batches one by one; what has only a length and numbers, by its numbers."""
    if isinstance(batches, Iterable):
        return iter(batches)
    return (batches[number] for number in range(len(batches)))


def _at_most_one(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the next batch, if there is one."""
    for batch in batches:
        yield batch
        return
