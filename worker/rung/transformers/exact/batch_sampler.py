"""The order of the training batches, and each rank's part of every one."""

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, Sampler

from rung.training import ProgressTracker
from rung.training.rng import isolated
from rung.training.seeds import Domain, derive
from rung.training.shares import Part


class Parts(Sampler[Any]):
    """A rank's parts of the batches that a single process takes, in its order.

    A sampler that draws from the global generators draws here from ones that follow from the
    trial's seed and the epoch, so that all ranks draw alike.
    """

    def __init__(self, inner: Any, part: Part, tracker: ProgressTracker) -> None:
        """Split the batches of a sampler.

        Args:
            inner: a batch sampler.
            part: which rank of how many.
            tracker: tells the epoch.
        """
        self._inner = inner
        self._part = part
        self._tracker = tracker
        self._lengths: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        epoch = self._tracker.progress.epochs
        sampler = getattr(self._inner, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with isolated(derive(self._tracker.run.seed, Domain.TRAINER_ORDER, epoch)):
            entries = [list(entry) for entry in self._inner]
        self._lengths = [len(entry) for entry in entries]
        return (entry[self._part.given(len(entry))] for entry in entries)

    def __len__(self) -> int:
        return len(self._inner)

    def share(self, number: int) -> float:
        """Return how large a part of a batch is this rank's; 0: a record stands in for none."""
        length = self._lengths[number]
        return self._part.count(length) / length


def merged(inner: Any, slots: int) -> Any:
    """Return a batch sampler whose batches are of all slots together.

    Args:
        inner: a batch sampler, each of whose batches is of one slot.
        slots: how many there are.
    """
    if type(inner) is BatchSampler:
        return BatchSampler(inner.sampler, slots * inner.batch_size, inner.drop_last)
    return _Merged(inner, slots)


class _Merged(Sampler[Any]):
    """Batches of another kind of sampler, several of them put together."""

    def __init__(self, inner: Any, slots: int) -> None:
        self._inner = inner
        self._slots = slots

    def __iter__(self) -> Iterator[list[Any]]:
        batches = iter(self._inner)
        while group := list(itertools.islice(batches, self._slots)):
            yield [index for batch in group for index in batch]

    def __len__(self) -> int:
        return (len(self._inner) + self._slots - 1) // self._slots
