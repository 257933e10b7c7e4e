"""What the ranks of a run do together in TensorFlow: averages of gradients, copies of variables.

The processes are connected (`rung.tensorflow.ranks`). The sums are made by TensorFlow's
collective operators themselves, over gRPC on CPUs and NCCL on GPUs: a script then needs no
`strategy.scope` and no `strategy.run`, and is on one slot what it always was. Why, and what was
tried, is in docs/decisions/0016-averages-over-tensorflows-collectives.md.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import tensorflow as tf

from rung import core
from rung.tensorflow.packed_tensors import packed

_GROUP: Final = 77_000_000
"""Far from the numbers that TensorFlow gives to groups of its own."""
_LARGEST: Final = 1 << 31


class Collective:
    """What one rank does with the others; in a run of one process nothing."""

    def __init__(self, ranks: core.DistributedContext) -> None:
        """Take a rank that has joined the others."""
        self._ranks: Final = ranks

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self._ranks.size > 1

    def averaged(self, gradients: Sequence[Any], share: Any) -> list[Any]:
        """Return the sums over the ranks of gradients times each rank's share, on every rank.

        What is None stays None, and must be so on all ranks; sparse gradients become dense.
        All of one type travel together.

        Args:
            gradients: tensors, of the same shapes on all ranks.
            share: a scalar tensor, this rank's part of the whole; gradients of no share are not
                looked at, so they may be anything.
        """
        if not self.several:
            return list(gradients)
        found = list(gradients)
        held = [index for index, each in enumerate(found) if each is not None]
        tensors = [tf.convert_to_tensor(found[index]) for index in held]
        weighted = [tf.math.multiply_no_nan(each, tf.cast(share, each.dtype)) for each in tensors]
        for index, value in zip(held, packed(weighted, self._sum), strict=True):
            found[index] = value
        return found

    def share(self, variables: Iterable[Any]) -> None:
        """Give all ranks the chief's values of variables, which are the same ones on each."""
        if not self.several:
            return
        for number, variable in enumerate(variables):
            if variable.dtype == tf.string:
                continue
            value = tf.convert_to_tensor(variable)
            value = tf.cast(value, _travels_as(value.dtype))
            key = _key(f"copy {number}", value)
            size, group = self._ranks.size, _GROUP
            if self._ranks.is_chief:
                tf.raw_ops.CollectiveBcastSendV2(
                    input=value, group_size=size, group_key=group, instance_key=key
                )
            else:
                got = tf.raw_ops.CollectiveBcastRecvV2(
                    group_size=size,
                    group_key=group,
                    instance_key=key,
                    shape=value.shape,
                    T=value.dtype,
                )
                variable.assign(tf.cast(got, variable.dtype))

    def _sum(self, flat: Any) -> Any:
        assert flat.shape.is_fully_defined(), "a gradient has its variable's shape"
        return tf.raw_ops.CollectiveReduceV2(
            input=flat,
            group_size=self._ranks.size,
            group_key=_GROUP,
            instance_key=_key("sum", flat),
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )


def _key(what: str, tensor: Any) -> int:
    """Return the number of a collective: the same on all ranks, and for each shape another."""
    return zlib.crc32(f"{what} {tensor.dtype.name} {tensor.shape}".encode()) % _LARGEST


def _travels_as(dtype: Any) -> Any:
    """Return the type in which a copy travels: its own, or one that holds all its values."""
    if dtype in {tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64}:
        return dtype
    return tf.float32 if dtype.is_floating else tf.int64
