"""Validation sharding: each of n ranks evaluates every n-th batch.

The records of a batch must not depend on the rank, so a random sampler draws from the trial's seed
and the step. A sharded model computes on all ranks at once: there batches are added, so that all
ranks have the same number, and the added ones are not counted. In the loops of Lightning and
Transformers (`Dealt`) each rank must have at least one batch.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, Sampler

from rung.torch.context import TrialContext
from rung.torch.data.sampler import EpochOrder, refuse_shared
from rung.training.shares import Part, dealt

Numbered = Iterable[tuple[int, Any]]
ENDLESS: Final = 2**62
"""A length for which all batches are counted."""


class Shared(NamedTuple):
    """A rank's batches with their numbers; those from `length` on are not counted."""

    batches: Numbered
    length: int


def shared_batches(loader: Any, context: TrialContext) -> Shared:
    """Return the batches of a loader that this rank evaluates."""
    ranks = context.distributed
    if not is_indexed(loader):
        if context.parallel.sharded:
            return Shared(enumerate(loader), ENDLESS if ranks.is_chief else 0)
        return Shared(itertools.islice(enumerate(loader), ranks.rank, None, ranks.size), ENDLESS)
    refuse_shared(loader.batch_sampler, "validation")
    order = EpochOrder(loader.batch_sampler, context.core.seed, tagged=False)
    order.epoch = context.batches
    entries = list(order)
    own = entries[ranks.rank :: ranks.size]
    if context.parallel.sharded and len(own) < math.ceil(len(entries) / ranks.size):
        own.append(entries[-1])
    numbers = itertools.count(ranks.rank, ranks.size)
    return Shared(zip(numbers, with_batches(loader, _Listed(own)), strict=False), len(entries))


class _Listed(Sampler[Any]):
    """A fixed list of batches."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def with_batches(loader: DataLoader[Any], batches: Sampler[Any]) -> DataLoader[Any]:
    """Return the loader with other batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


class Entries:
    """A loader's batches by their record indexes, the same on every rank."""

    def __init__(self, loader: DataLoader[Any], seed: int, moment: Callable[[], int]) -> None:
        """Take a loader's batch sampler.

        Args:
            loader: with a data set that has an index.
            seed: of the trial; a sampler draws from this and `moment`.
            moment: returns the number of trained batches.

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
    """This rank's batches of a loader."""

    def __init__(self, entries: Entries, part: Part, limit: Callable[[int], int]) -> None:
        """Shard a loader's batches.

        Args:
            entries: of the loader.
            part: which rank of how many.
            limit: takes the number of batches; returns how many of them are evaluated.
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
    """Return whether a loader's batches can be sharded by their record indexes."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )
