"""Validation data, shared between the ranks.

Batches are dealt out whole, one to each rank in turn, so that each gives what it gives on one
slot. Where there are fewer batches than ranks each batch is split; where even that leaves a rank
without a record, the set is so small that every rank takes all of it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

from rung.torch.order import EpochOrder, Part, refuse_shared


def dealt(entries: list[list[Any]], part: Part) -> list[list[Any]]:
    """Return the batches that fall to a rank; each rank has one at least.

    Args:
        entries: the records of each batch of all ranks.
        part: which rank of how many.
    """
    if len(entries) >= part.size:
        return entries[part.rank :: part.size]
    if any(len(entry) >= part.size for entry in entries):
        return [own for entry in entries if (own := entry[part.of(len(entry))])]
    return entries


def read_whole(entries: list[list[Any]], part: Part) -> bool:
    """Return whether every rank takes all of the batches, so few and small are they."""
    return len(entries) < part.size and all(len(entry) < part.size for entry in entries)


class Entries:
    """A loader's batches by their records, drawn alike on every rank."""

    def __init__(self, loader: DataLoader[Any], seed: int, moment: Callable[[], int]) -> None:
        """Take a loader's batch sampler.

        Args:
            loader: with a data set that has an index.
            seed: the trial's; what a sampler draws follows from it and the moment.
            moment: how many batches are trained.

        Raises:
            InvalidPlan: its sampler gives each rank only some of the records already.
        """
        refuse_shared(loader.batch_sampler, "validation")
        self._order = EpochOrder(loader.batch_sampler, seed, tagged=False)
        self._moment = moment

    def draw(self) -> list[list[Any]]:
        """Return the batches of one pass."""
        self._order.epoch = self._moment()
        return [list(entry) for entry in self._order]


class Dealt(Sampler[Any]):
    """The batches of a loader that fall to this rank."""

    def __init__(self, entries: Entries, part: Part, limit: Callable[[int], int]) -> None:
        """Deal out a loader's batches.

        Args:
            entries: of the loader.
            part: which rank of how many.
            limit: how many of so many batches all ranks together take.
        """
        self._entries = entries
        self._part = part
        self._limit = limit

    def __iter__(self) -> Iterator[Any]:
        entries = self._entries.draw()
        return iter(dealt(entries[: self._limit(len(entries))], self._part))

    def __len__(self) -> int:
        return len(list(iter(self)))


def is_indexed(loader: Any) -> bool:
    """Return whether a loader's batches can be dealt out: they are known by their records."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )
