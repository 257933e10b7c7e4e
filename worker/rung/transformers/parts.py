"""The order of the training batches, and each rank's part of every one."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from rung.loop import Course
from rung.torch.order import Part
from rung.torch.rng import derive, isolated

_ORDER = 6


class Parts(Sampler[Any]):
    """A rank's parts of the batches that a single process takes, in its order.

    A sampler that draws from the global generators draws here from ones that follow from the
    trial's seed and the epoch, so that all ranks draw alike.
    """

    def __init__(self, inner: Any, part: Part, course: Course) -> None:
        """Split the batches of a sampler.

        Args:
            inner: a batch sampler.
            part: which rank of how many.
            course: tells the epoch.
        """
        self._inner = inner
        self._part = part
        self._course = course
        self._lengths: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        epoch = self._course.progress.epochs
        sampler = getattr(self._inner, "sampler", None)
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with isolated(derive(self._course.run.seed, _ORDER, epoch)):
            entries = [list(entry) for entry in self._inner]
        self._lengths = [len(entry) for entry in entries]
        return (entry[self._part.given(len(entry))] for entry in entries)

    def __len__(self) -> int:
        return len(self._inner)

    def share(self, number: int) -> float:
        """Return how large a part of a batch is this rank's; 0: a record stands in for none."""
        length = self._lengths[number]
        return self._part.count(length) / length
