"""The other ranks of Keras on TensorFlow: TensorFlow's own collectives.

Their public door is the strategy that connects the processes. What runs under it can be summed
over them, in a compiled function, too. Nothing else of it is used: Keras does not train under it.
"""

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from rung import core
from rung.keras.collectives import Span
from rung.keras.torch_collectives import span_of
from rung.tensorflow.packed_tensors import packed
from rung.tensorflow.ranks import joined
from rung.training.shares import Part

_REFUSED: Final = "rung: the ranks differ"


class TensorFlowExchange:
    """One rank among those of a cluster of TensorFlow's."""

    def __init__(self, run: core.Context) -> None:
        """Join the others.

        Raises:
            NotJoined: they cannot be joined.
        """
        ranks = run.distributed
        self._ranks: Final = ranks
        self._part: Final = Part(ranks.rank, ranks.size)
        self._strategy: Final = joined(run, "rung.keras")
        self._compiled = tf.function(self._sum)

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the sums over all ranks."""
        given = [tf.convert_to_tensor(tensor) for tensor in tensors]
        found = self._compiled(given) if tf.executing_eagerly() else self._sum(given)
        return list(found)

    def span(self, leaf: Any) -> Span:
        """Return this rank's part of a batch; of one whose length is not known yet, as tensors."""
        if leaf.shape[0] is not None:
            return span_of(self._part, int(leaf.shape[0]))
        rank, size = self._part
        length = tf.shape(leaf)[0]
        base, extra = length // size, length % size
        count = base + tf.cast(rank < extra, tf.int32)
        start = tf.minimum(rank * base + tf.minimum(rank, extra), length - 1)
        share = tf.cast(count, tf.float32) / tf.cast(length, tf.float32)
        return Span(start, start + tf.maximum(count, 1), share)

    def insist(self, equal: Any) -> None:
        """Fail the step where this is not true."""
        tf.debugging.Assert(equal, [_REFUSED])

    def refused(self, error: Exception) -> bool:
        """Return whether `insist` failed."""
        return isinstance(error, tf.errors.InvalidArgumentError) and _REFUSED in str(error)

    def close(self) -> None:
        """Wait for the others: TensorFlow keeps its cluster until the process ends.

        One that ends earlier is missed by the others.
        """
        self._ranks.barrier()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # has no types
    def _sum(self, tensors: Sequence[Any]) -> list[Any]:
        return packed(tensors, lambda flat: self._strategy.run(_total, args=(flat,)))


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # has no types
def _total(flat: Any) -> Any:
    """Return a sum over all ranks; of the copy, which unlike the original knows its device."""
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(flat))
