"""Sharding of iterable data sets (streams) that are the same on all ranks.

All ranks read the whole stream, cut it into batches of all ranks together, and keep their part of
each. The last rank's state after a batch is that of the stream at the batch's end, from which any
number of ranks can resume. The same holds for the state of a single rank, which reads the stream
unchanged.

The order must be the same on all ranks, while each computes something else between two records. So
the stream of several ranks draws from separate generators, which are seeded for the epoch and the
worker.
"""

from collections.abc import Iterator
from typing import Any, Final

from torch.utils.data import IterableDataset, get_worker_info

from rung.torch.data.dataset_proxy import Forwarding
from rung.torch.data.sampler import SeparateDraws
from rung.training import rng
from rung.training.seeds import Domain, derive
from rung.training.shares import WHOLE, Part

_STREAM: Final = "rung_stream"
"""The key of the stream's own state."""
_POSITION: Final = "rung_position"
_GENERATORS: Final = "rung_generators"
_UNMARKED: Final = {"stream", "position"}
"""The names in a state that several ranks stored in older checkpoints."""


class PartOfStream(Forwarding, IterableDataset[Any]):
    """One rank's part of a stream."""

    def __init__(self, inner: Any, part: Part, batch: int, seed: int) -> None:
        self.rung_inner = inner
        self.rung_own = part.of(batch)
        self.rung_batch = batch
        self.rung_position = 0
        self.rung_seed = seed
        self.rung_epoch = 0
        self.rung_generators: rng.Generators | None = None

    def __getattr__(self, name: str) -> Any:
        if name in {"state_dict", "load_state_dict"}:
            raise AttributeError(name)
        return super().__getattr__(name)

    def __iter__(self) -> Iterator[Any]:
        position, self.rung_position = self.rung_position, 0
        generators, self.rung_generators = self.rung_generators, None
        if generators is None:
            worker = get_worker_info()
            place = self.rung_epoch, 0 if worker is None else worker.id
            with rng.isolated(derive(self.rung_seed, Domain.STREAM, *place)):
                generators = rng.capture()
        parts = SeparateDraws(self._parts(position), generators)
        for records, end in parts:
            self.rung_position, self.rung_generators = end, parts.generators
            yield from records
        self.rung_position, self.rung_generators = 0, None
        self.rung_epoch += 1  # a persistent worker reads it again

    def _parts(self, position: int) -> Iterator[tuple[list[Any], int]]:
        """Yield this rank's records of each batch, and the position behind them."""
        own, batch = self.rung_own, self.rung_batch
        mine: list[Any] = []
        for record in self.rung_inner:
            within = position % batch
            position += 1
            if own.start <= within < own.stop:
                mine.append(record)
            if within == own.stop - 1 and mine:
                yield mine, position
                mine = []
        if mine:
            yield mine, position


class StatefulPartOfStream(PartOfStream):
    """One rank's part of a stream with `state_dict` and `load_state_dict`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state, the position, and what the stream draws from."""
        found = {_STREAM: self.rung_inner.state_dict(), _POSITION: self.rung_position}
        if self.rung_generators is not None:
            found[_GENERATORS] = rng.to_json(self.rung_generators)
        return found

    def load_state_dict(self, state: Any) -> None:
        """Resume from a state; one of a single rank is at the end of a batch."""
        own = state if isinstance(state, dict) else {}
        if own.keys() == _UNMARKED:
            state = own = {_STREAM: own["stream"], _POSITION: own["position"]}
        self.rung_inner.load_state_dict(_of_stream(state))
        self.rung_position = own.get(_POSITION, 0)
        if _GENERATORS in own:
            self.rung_generators = rng.from_json(own[_GENERATORS])


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


def part_of_stream(inner: Any, part: Part, batch: int, seed: int = 0) -> IterableDataset[Any]:
    """Return a rank's part of a stream.

    Args:
        inner: the stream.
        part: which rank of how many.
        batch: how many records a batch of all ranks has; 0: the rank reads all records.
        seed: of the trial.
    """
    stateful = hasattr(inner, "state_dict") and hasattr(inner, "load_state_dict")
    if part.size == 1:
        return WholeStream(inner) if stateful else inner
    kind = StatefulPartOfStream if stateful else PartOfStream
    return kind(inner, part if batch else WHOLE, max(batch, 1), seed)


def _of_stream(state: Any) -> Any:
    return state[_STREAM] if isinstance(state, dict) and _STREAM in state else state
