"""Where Lightning gets its data from: what the user gave, put in order and shared."""

from collections.abc import Callable
from typing import Any, Final

from lightning.pytorch.utilities.combined_loader import CombinedLoader

from rung.lightning.loader import ExactLoader
from rung.loop import Course
from rung.loop.sharing import Dealt, Entries, is_indexed
from rung.torch.order import Part
from rung.torch.sharing import with_batches


class Source:
    """A source of loaders, each changed on its way."""

    def __init__(self, inner: Any, change: Callable[[Any], Any]) -> None:
        """Stand before a source.

        Args:
            inner: Lightning's.
            change: what becomes of what it gives.
        """
        self._inner = inner
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def dataloader(self) -> Any:
        """Return what to read from."""
        loader = self._inner.dataloader()
        return loader if isinstance(loader, ExactLoader) else self._change(loader)


class Validation:
    """Shares the batches of all validation loaders between the ranks."""

    def __init__(self, trainer: Any, course: Course) -> None:
        """Take over how many batches are validated.

        Args:
            trainer: its `limit_val_batches` is for all ranks together.
            course: tells the moment, from which the order follows where one is drawn.
        """
        ranks = course.run.distributed
        self._seed: Final = course.run.seed
        self._part: Final = Part(ranks.rank, ranks.size)
        self._course: Final = course
        self._limit: Final = trainer.limit_val_batches
        if self._limit:
            trainer.limit_val_batches = 1.0

    def shared(self, loaders: Any) -> Any:
        """Return loaders of the batches that fall to this rank."""
        combined = loaders
        if not isinstance(loaders, CombinedLoader):
            combined = CombinedLoader(loaders, "sequential")
        combined.flattened = [self._own(loader) for loader in combined.flattened]
        return combined

    def _own(self, loader: Any) -> Any:
        if not is_indexed(loader):
            return loader
        entries = Entries(loader, self._seed, lambda: self._course.progress.batches)
        return with_batches(loader, Dealt(entries, self._part, self._limited))

    def _limited(self, batches: int) -> int:
        if isinstance(self._limit, float):
            return int(batches * self._limit)
        return min(batches, int(self._limit))
