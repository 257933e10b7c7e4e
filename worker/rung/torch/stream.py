"""A rank's part of a data set that is a stream.

The stream is cut into batches of all ranks together, and each rank keeps its part of each of them;
all read the whole stream. The state that the last rank has after a batch is that of the stream at
the batch's end, from which any number of ranks can go on.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from rung.torch.forwarding import Forwarding
from rung.torch.order import Part


class PartOfStream(Forwarding, IterableDataset[Any]):
    """The records of a stream that fall to one rank."""

    def __init__(self, inner: Any, part: Part, batch: int) -> None:
        self.rung_inner = inner
        self.rung_own = part.of(batch)
        self.rung_batch = batch
        self.rung_position = 0

    def __getattr__(self, name: str) -> Any:
        if name in {"state_dict", "load_state_dict"}:
            raise AttributeError(name)
        return super().__getattr__(name)

    def __iter__(self) -> Iterator[Any]:
        own, batch = self.rung_own, self.rung_batch
        position, self.rung_position = self.rung_position, 0
        for record in self.rung_inner:
            within = position % batch
            position += 1
            if own.start <= within < own.stop:
                self.rung_position = position
                yield record
        self.rung_position = 0


class StatefulPartOfStream(PartOfStream):
    """The same of a stream that can tell where it is."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream is."""
        return {"stream": self.rung_inner.state_dict(), "position": self.rung_position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.rung_inner.load_state_dict(state["stream"])
        self.rung_position = state["position"]


def part_of_stream(inner: Any, part: Part, batch: int) -> PartOfStream:
    """Return a rank's part of a stream, with batches of so many records of all ranks."""
    stateful = hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")
    kind = StatefulPartOfStream if stateful else PartOfStream
    return kind(inner, part, batch)
