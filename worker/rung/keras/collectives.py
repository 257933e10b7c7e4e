"""The other ranks of a run, as the training step of Keras needs them.

Keras on TensorFlow speaks with them over TensorFlow's collectives (gRPC on CPUs, NCCL on GPUs),
inside the compiled step; Keras on torch over torch's process group (gloo, NCCL).
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import keras

from rung import core
from rung.training.distributed_config import distributed_config

DIFFERENT_BATCHES: Final = (
    "the ranks read different batches, so their parts of them are not disjoint. Every rank reads "
    "the training data as one process would, and trains with its part of each batch: give data "
    "whose order follows from the seeds alone (arrays, a torch DataLoader, a tf.data pipeline "
    "without options.deterministic = False, a PyDataset that draws from Python's or NumPy's "
    "generators), or set slots_per_trial: 1"
)

NEARLY: Final = 1e-4
"""How much the numbers that tell batches apart may differ between machines."""


class Span(NamedTuple):
    """Which part of a batch is this rank's: Python numbers, or tensors where it is compiled."""

    start: Any
    stop: Any
    share: Any
    """How large a part it is; nothing, where the span is a record that only stands in."""


class Exchange(Protocol):
    """What ranks say to each other in a step."""

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the sums over all ranks, the same bits on each of them."""

    def span(self, leaf: Any) -> Span:
        """Return this rank's part of a batch that one of its tensors tells the length of."""

    def insist(self, equal: Any) -> None:
        """Fail the step where this is not true."""

    def refused(self, error: Exception) -> bool:
        """Return whether this is what `insist` makes of it."""

    def close(self) -> None:
        """Let go of the others."""


_joined: "WeakKeyDictionary[core.Context, Exchange]" = WeakKeyDictionary()


def exchange_of(run: core.Context) -> Exchange | None:
    """Return the exchange with the other ranks of a run, joined at the first call; None: alone.

    Raises:
        NotJoined: the experiment file asks for ranks that Keras cannot join.
    """
    if run.distributed.size == 1:
        return None
    if run not in _joined:
        _joined[run] = _join(run)
    return _joined[run]


def part_with(run: core.Context) -> None:
    """Let go of the other ranks, in good order."""
    exchange = _joined.pop(run, None)
    if exchange is not None:
        exchange.close()


def _join(run: core.Context) -> Exchange:
    if keras.backend.backend() == "tensorflow":
        from rung.keras.tensorflow_collectives import (  # noqa: PLC0415 - imports TensorFlow
            TensorFlowExchange,
        )

        return TensorFlowExchange(run)
    from rung.keras.torch_collectives import TorchExchange  # noqa: PLC0415 - for several ranks only

    section = distributed_config(run, "rung.keras on torch", "torch")
    return TorchExchange(run.distributed, section.get("backend"))
