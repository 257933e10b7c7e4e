"""Validation sharding: each of n ranks evaluates every n-th batch.

The records of a batch must not depend on the rank, so a random sampler draws from the trial's seed
and the step; so does a stream that is the same on all ranks. Of a stream that shards itself each
rank evaluates its own batches. A sharded model computes on all ranks at once: there batches are
added, so that all ranks have the same number, and the added ones are not counted. In the loops of
Lightning and Transformers (`Dealt`) each rank must have at least one batch.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, Sampler

from rung import core
from rung.torch.context import TrialContext
from rung.torch.data import loader_copy
from rung.torch.data.sampler import EpochOrder, SeparateDraws, refuse_shared
from rung.torch.data.stream import refuse_apart, shards_itself
from rung.training import rng
from rung.training.seeds import Domain, derive
from rung.training.shares import Part, dealt
from rung.training.units import InvalidPlan

Numbered = Iterable[tuple[int, Any]]
ENDLESS: Final = 2**62
"""A length for which all batches are counted."""


class Shared(NamedTuple):
    """A rank's batches with their numbers; those from `length` on are not counted."""

    batches: Numbered
    length: int


def shared_batches(loader: Any, context: TrialContext) -> Shared:
    """Return the batches of a loader that this rank evaluates.

    Raises:
        InvalidPlan: the loader's data cannot be shared; the message says why.
    """
    ranks = context.distributed
    numbers: Iterator[int] = itertools.count(ranks.rank, ranks.size)
    if isinstance(loader, Sequence):
        return _every_nth(loader, context)
    if not isinstance(loader, DataLoader) or is_stream(loader):
        if not stream_shards_itself(loader, ranks.size):
            return _every_nth(_alike(loader, context), context)
        own = _in_step(loader, ranks) if context.parallel.sharded else loader
        return Shared(_numbered(numbers, own), ENDLESS)
    refuse_apart(ranks, loader.dataset, "validation")
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    refuse_shared(sampler, "validation")
    order = EpochOrder(sampler, context.core.seed, tagged=False)
    order.epoch = context.batches
    entries = list(order)
    mine = entries[ranks.rank :: ranks.size]
    if context.parallel.sharded and len(mine) < math.ceil(len(entries) / ranks.size):
        mine.append(entries[-1])
    return Shared(zip(numbers, _read(loader, mine), strict=False), len(entries))


def is_stream(loader: Any) -> bool:
    """Return whether a loader's data are a stream, without an index."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def stream_shards_itself(loader: Any, slots: int) -> bool:
    """Return whether the validation data shard themselves.

    Raises:
        InvalidPlan: the script does not say so.
    """
    dataset = getattr(loader, "dataset", loader)
    return shards_itself("validation", dataset, loader, slots=slots)


def _every_nth(batches: Iterable[Any], context: TrialContext) -> Shared:
    """Return this rank's batches of those that are the same on all ranks."""
    ranks = context.distributed
    if context.parallel.sharded:
        return Shared(enumerate(batches), ENDLESS if ranks.is_chief else 0)
    return Shared(itertools.islice(enumerate(batches), ranks.rank, None, ranks.size), ENDLESS)


def _alike(batches: Iterable[Any], context: TrialContext) -> Iterator[Any]:
    """Return batches, drawn as on all other ranks, whatever the ranks compute with them."""
    with rng.isolated(derive(context.core.seed, Domain.STREAM, context.batches)):
        return SeparateDraws(iter(batches), rng.capture())


def _in_step(batches: Iterable[Any], ranks: core.DistributedContext) -> Iterator[Any]:
    """Yield a rank's batches, and None where only other ranks have one."""
    own = iter(batches)
    while True:
        batch = next(own, None)
        if not any(ranks.allgather(batch is not None)):
            return
        yield batch


def _numbered(numbers: Iterator[int], batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield batches with their numbers; in place of None the one before, which is not counted."""
    last: Any = None
    for number, batch in zip(numbers, batches, strict=False):
        if batch is None and last is None:
            raise InvalidPlan(
                "the validation data shard themselves and give this slot no batch, but a model in"
                " parts computes on all slots at once: give each slot at least one batch"
            )
        yield (number, batch) if batch is not None else (ENDLESS, last)
        last = last if batch is None else batch


def _read(loader: DataLoader[Any], entries: list[Any]) -> Iterator[Any]:
    """Yield the batches of a loader's entries.

    Raises:
        InvalidPlan: the loader's class does not read them.
    """
    listed = loader_copy.Listed(entries)
    if loader.batch_sampler is None:
        copied = loader_copy.copied(loader, sampler=listed)
    else:
        copied = loader_copy.with_batches(loader, listed)
    for batch in copied:
        if not listed.opened:
            raise InvalidPlan(
                f"the validation data loader, a {type(loader).__name__}, does not read its"
                " batch_sampler anew in each pass, so its batches cannot be shared between slots:"
                " use a torch DataLoader, or resources.slots_per_trial: 1"
            )
        yield batch


def with_batches(loader: DataLoader[Any], batches: Sampler[Any]) -> DataLoader[Any]:
    """Return the loader with other batches."""
    made: DataLoader[Any] = loader_copy.with_batches(loader, batches)
    return made


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
