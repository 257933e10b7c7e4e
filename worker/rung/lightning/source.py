"""Where Lightning gets its data from: what the user gave, put in order and shared."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from lightning.pytorch.utilities.combined_loader import CombinedLoader

from rung.lightning.loader import ExactLoader
from rung.loop import Course
from rung.loop.errors import CannotFollow
from rung.loop.sharing import Dealt, Entries, is_indexed, read_whole
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
        self.whole: Final[list[bool]] = []
        """Of each loader, whether every rank reads all of it: what it sums up counts once."""
        if self._limit:
            trainer.limit_val_batches = 1.0

    def give_back(self, trainer: Any) -> None:
        """Let other loops have the limit that the script gave."""
        trainer.limit_val_batches = self._limit

    def shared(self, loaders: Any) -> Any:
        """Return loaders of the batches that fall to this rank."""
        combined = loaders
        if not isinstance(loaders, CombinedLoader):
            combined = CombinedLoader(loaders, "sequential")
        own = [self._own(loader) for loader in combined.flattened]
        combined.flattened = [loader for loader, _ in own]
        self.whole[:] = [whole for _, whole in own]
        return combined

    def _own(self, loader: Any) -> tuple[Any, bool]:
        """Return a loader of this rank's batches, and whether every rank has the same."""
        if not is_indexed(loader):
            return self._cut(loader), True
        entries = Entries(loader, self._seed, lambda: self._course.progress.batches)
        dealt = Dealt(entries, self._part, self._limited)
        drawn = entries.draw()
        whole = read_whole(drawn[: self._limited(len(drawn))], self._part)
        return with_batches(loader, dealt), whole

    def _cut(self, loader: Any) -> Any:
        if self._limit == 1.0 and isinstance(self._limit, float):
            return loader
        if isinstance(self._limit, float):
            raise CannotFollow(
                f"Trainer(limit_val_batches={self._limit}): the validation data are a stream, of "
                "which no part can be told; give a number of batches"
            )
        return Beginning(loader, self._limit)

    def _limited(self, batches: int) -> int:
        if isinstance(self._limit, float):
            return int(batches * self._limit)
        return min(batches, int(self._limit))


class Beginning:
    """The first batches of a stream, in every pass."""

    def __init__(self, inner: Any, batches: int) -> None:
        """Cut a loader off after some batches."""
        self._inner = inner
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[Any]:
        yield from itertools.islice(self._inner, self._batches)
