"""A rank's part of a data set that is a stream.

The stream is cut into batches of all ranks together, and each rank keeps its part of each of them;
all read the whole stream. The state that the last rank has after a batch is that of the stream at
the batch's end, from which any number of ranks can go on.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from rung.torch.order import Part


class PartOfStream(IterableDataset[Any]):
    """The records of a stream that fall to one rank."""

    def __init__(self, inner: Any, part: Part, batch: int) -> None:
        self._inner = inner
        self._own = part.of(batch)
        self._batch = batch
        self._position = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in {"_inner", "state_dict", "load_state_dict"}:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[Any]:
        own, batch = self._own, self._batch
        position, self._position = self._position, 0
        for record in self._inner:
            within = position % batch
            position += 1
            if own.start <= within < own.stop:
                self._position = position
                yield record
        self._position = 0


class StatefulPartOfStream(PartOfStream):
    """The same of a stream that can tell where it is."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is."""
        return {"stream": self._inner.state_dict(), "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._inner.load_state_dict(state["stream"])
        self._position = state["position"]


def part_of_stream(inner: Any, part: Part, batch: int) -> PartOfStream:
    """Return a rank's part of a stream, with batches of so many records of all ranks."""
    stateful = hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")
    kind = StatefulPartOfStream if stateful else PartOfStream
    return kind(inner, part, batch)
