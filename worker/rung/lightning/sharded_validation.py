"""The batches of validation, shared between the ranks."""

import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset

from rung.torch.data.stream import refuse_apart
from rung.torch.data.validation_sharding import (
    Dealt,
    Entries,
    is_indexed,
    stream_shards_itself,
    with_batches,
)
from rung.training import ProgressTracker
from rung.training.errors import NotResumable
from rung.training.shares import Part, replicated


class ShardedValidation:
    """Shares the batches of all validation loaders between the ranks."""

    def __init__(self, trainer: Any, tracker: ProgressTracker) -> None:
        """Take over how many batches are validated.

        Args:
            trainer: its `limit_val_batches` is for all ranks together.
            tracker: tells the moment, from which the order follows where one is drawn.
        """
        ranks = tracker.run.distributed
        self._ranks: Final = ranks
        self._seed: Final = tracker.run.seed
        self._part: Final = Part(ranks.rank, ranks.size)
        self._tracker: Final = tracker
        self._limit: Final = trainer.limit_val_batches
        self._whole: Final = weakref.WeakKeyDictionary[Any, bool]()
        if self._limit:
            trainer.limit_val_batches = 1.0

    def give_back(self, trainer: Any) -> None:
        """Let other loops have the limit that the script gave."""
        trainer.limit_val_batches = self._limit

    def whole(self, trainer: Any) -> list[bool]:
        """Return of each loader whether every rank reads all of it; its sums count once."""
        loaders = trainer.val_dataloaders
        if not isinstance(loaders, CombinedLoader):
            loaders = CombinedLoader(loaders, "sequential")
        return [self._whole.get(loader, True) for loader in loaders.flattened]

    def own(self, loader: Any) -> Any:
        """Return a loader of this rank's batches."""
        if _is_stream(loader) and stream_shards_itself(loader, self._part.size):
            part = Beginning(loader, self._own_limit())
            self._whole[part] = False
            return part
        if not is_indexed(loader):
            return self._cut(loader)
        refuse_apart(self._ranks, loader.dataset, "validation")
        entries = Entries(loader, self._seed, lambda: self._tracker.progress.batches)
        drawn = entries.draw()
        own = with_batches(loader, Dealt(entries, self._part, self._limited))
        self._whole[own] = replicated(drawn[: self._limited(len(drawn))], self._part)
        return own

    def _own_limit(self) -> int | None:
        """Return how many batches this rank validates of a stream that shards itself."""
        if isinstance(self._limit, float):
            self._refuse_fraction()
            return None
        return self._part.count(int(self._limit))

    def _refuse_fraction(self) -> None:
        if self._limit != 1.0:
            raise NotResumable(
                f"Trainer(limit_val_batches={self._limit}): the validation data are a stream, of "
                "which no part can be told; give a number of batches"
            )

    def _cut(self, loader: Any) -> Any:
        if isinstance(self._limit, float):
            self._refuse_fraction()
            return loader
        return Beginning(loader, self._limit)

    def _limited(self, batches: int) -> int:
        if isinstance(self._limit, float):
            return int(batches * self._limit)
        return min(batches, int(self._limit))


class Beginning:
    """The first batches of a stream, in every pass."""

    def __init__(self, inner: Any, batches: int | None) -> None:
        """Cut a loader off after some batches; None: after all."""
        self._inner = inner
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[Any]:
        yield from itertools.islice(self._inner, self._batches)


def _is_stream(loader: Any) -> bool:
    """Return whether a loader's data have no index, so that they may be shared already."""
    if isinstance(loader, DataLoader):
        return isinstance(loader.dataset, IterableDataset)
    return not isinstance(loader, Sequence)
