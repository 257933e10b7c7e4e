"""The validation's batches, shared between the ranks: each takes every n-th.

Which records a batch holds must not depend on the rank, so a sampler that draws does so from the
trial's seed and the step. A sharded model computes on all ranks at once: there the batches are
filled up, so that all ranks have as many, and what fills them up does not count.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, Sampler

from rung.torch.context import TrialContext
from rung.torch.order import EpochOrder, refuse_shared

Numbered = Iterable[tuple[int, Any]]
ENDLESS: Final = 2**62
"""Where all numbers count."""


class Shared(NamedTuple):
    """A rank's batches with their numbers, and how many numbers count."""

    batches: Numbered
    length: int


def shared_batches(loader: Any, context: TrialContext) -> Shared:
    """Return the batches of a loader that this rank evaluates."""
    ranks = context.distributed
    if (
        not isinstance(loader, DataLoader)
        or isinstance(loader.dataset, IterableDataset)
        or loader.batch_sampler is None
    ):
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
    """Batches that are known."""

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
