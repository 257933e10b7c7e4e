"""Sharding of iterable data sets (streams).

All ranks read the whole stream, cut it into batches of all ranks together, and keep their part of
each. The last rank's state after a batch is that of the stream at the batch's end, from which any
number of ranks can resume. The same holds for the state of a single rank, which reads the stream
unchanged.
"""

from collections.abc import Iterator
from typing import Any, Final

from torch.utils.data import IterableDataset

from rung.torch.data.dataset_proxy import Forwarding
from rung.training.shares import Part

_STREAM: Final = "rung_stream"
"""The key of the stream's own state."""
_POSITION: Final = "rung_position"
_UNMARKED: Final = {"stream", "position"}
"""The names in a state that several ranks stored in older checkpoints."""


class PartOfStream(Forwarding, IterableDataset[Any]):
    """One rank's part of a stream."""

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
    """One rank's part of a stream with `state_dict` and `load_state_dict`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state and the position."""
        return {_STREAM: self.rung_inner.state_dict(), _POSITION: self.rung_position}

    def load_state_dict(self, state: Any) -> None:
        """Resume from a state; one of a single rank is at the end of a batch."""
        if isinstance(state, dict) and state.keys() == _UNMARKED:
            state = {_STREAM: state["stream"], _POSITION: state["position"]}
        self.rung_inner.load_state_dict(_of_stream(state))
        self.rung_position = state.get(_POSITION, 0) if isinstance(state, dict) else 0


class WholeStream(Forwarding, IterableDataset[Any]):
    """A stream with a state, for a single rank; its states are compatible with those of parts."""

    def __init__(self, inner: Any) -> None:
        self.rung_inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rung_inner)

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state."""
        return {_STREAM: self.rung_inner.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        """Resume from a state; in older checkpoints a single rank stored the stream's own."""
        self.rung_inner.load_state_dict(_of_stream(state))


def part_of_stream(inner: Any, part: Part, batch: int) -> IterableDataset[Any]:
    """Return a rank's part of a stream, with batches of `batch` records of all ranks."""
    stateful = hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")
    if part.size == 1:
        return WholeStream(inner) if stateful else inner
    kind = StatefulPartOfStream if stateful else PartOfStream
    return kind(inner, part, batch)


def _of_stream(state: Any) -> Any:
    return state[_STREAM] if isinstance(state, dict) and _STREAM in state else state
