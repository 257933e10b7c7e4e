"""Stream changes: what training changes in the attributes of an `IterableDataset`.

A stream changes by itself as it is read: it counts passes, has a position, fills buffers. A run
that resumes reads the pass again from its beginning, so within an epoch a checkpoint holds what
the stream was before that pass, and reading does the rest. What else changes it within an epoch
is refused, since samples are read ahead. What changes while the trainer fetches is the stream's
doing.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rung.torch.checkpoint.changes import copied, fingerprints
from rung.torch.checkpoint.object_changes import ObjectChanges, refuse


class StreamChanges(ObjectChanges):
    """Changes of a stream since the start, apart from those that reading it makes."""

    def __init__(self, data: Any, aside: Callable[[], Iterable[Any]], *, model: Any) -> None:
        """Note what there is.

        Args:
            data: the stream.
            aside: returns what belongs to the loop.
            model: that is trained.
        """
        super().__init__({type(data).__name__: data}, aside, model=model)
        self._at_start: list[dict[str, Any]] = []
        self._last: dict[str, str] = {}
        """What had changed when the trainer had fetched its last batches."""
        self._by_itself: set[str] = set()
        self._from_outside: set[str] = set()
        """Places that something else has changed in this epoch."""

    def begin_epoch(self) -> None:
        """Note the stream as it is before a pass."""
        self._at_start = [copied(it) for it in self._storable()]
        self._last = self._now()
        self._from_outside = set()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Take what changes within the block for the stream's own doing."""
        before = self._now()
        self._from_outside |= _different(self._last, before)
        yield
        self._last = self._now()
        self._by_itself |= _different(before, self._last)

    def kept(self, *, within: bool) -> Sequence[Mapping[str, Any]]:
        """Return what a checkpoint holds.

        Args:
            within: whether this is the middle of an epoch.

        Raises:
            NotResumable: something but the stream has changed it in this epoch; or a change cannot
                be stored.
        """
        if not within:
            return self._storable()
        refuse(
            [
                f"{place} of the data set has changed within an epoch, whose batches are fetched"
                " ahead: change it as an epoch begins"
                for place in sorted(self._from_outside | _different(self._last, self._now()))
            ]
        )
        return self._at_start

    def _storable(self) -> list[dict[str, Any]]:
        """Return what has changed; what the stream makes as it is read need not be stored."""
        found = self.compared()
        refuse([text for place, text in found.lost.items() if place not in self._by_itself])
        self.tell([*found.lost, *found.unkept])
        return found.entries

    def _now(self) -> dict[str, str]:
        """Return texts that differ for different values, by the places of what has changed."""
        found = self.compared()
        return found.lost | fingerprints(found.entries)


def _different(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    return {place for place in {*before, *now} if before.get(place) != now.get(place)}
