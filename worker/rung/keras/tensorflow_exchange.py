"""The other ranks of Keras on TensorFlow: TensorFlow's own collectives.

Their public door is a `MultiWorkerMirroredStrategy`. It connects the processes, and what runs
under it can be summed over them, in a compiled function, too. Nothing else of it is used: Keras
does not train under it.
"""

import contextlib
import socket
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import tensorflow as tf

from rung import core
from rung.core import protocol
from rung.keras.exchange import Span
from rung.keras.feed import CannotFollow
from rung.keras.torch_exchange import span_of
from rung.tensorflow.patience import be_patient
from rung.torch.order import Part

_REFUSED: Final = "rung: the ranks differ"
_PROBE_PORT: Final = 9
"""Nothing is sent to it."""


class TensorFlowExchange:
    """One rank among those of a cluster of TensorFlow's."""

    def __init__(self, ranks: core.DistributedContext, environment: dict[str, str]) -> None:
        """Join the others.

        Args:
            ranks: those of the run.
            environment: of this process, as its agent made it.

        Raises:
            CannotFollow: TensorFlow has begun to work already.
        """
        self._ranks: Final = ranks
        self._part: Final = Part(ranks.rank, ranks.size)
        with contextlib.ExitStack() as kept:
            resolver = None
            if "TF_CONFIG" not in environment:
                resolver = _meeting(ranks, environment, kept)
            be_patient(ranks.size)
            try:
                _take_device(ranks.local_rank)
                self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
            except RuntimeError as error:
                raise CannotFollow(
                    "with several slots, rung.keras.init() comes before anything that TensorFlow "
                    f"computes: call it first in the script ({error})"
                ) from error
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

    def behind(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        """Do what is done in this block only once these tensors are there.

        Otherwise a compiled step may do it although the data have ended.
        """
        found: contextlib.AbstractContextManager[Any] = tf.control_dependencies(list(tensors))
        return found

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
        found: list[Any] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            indices = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = tf.concat([tf.reshape(tensors[index], [-1]) for index in indices], 0)
            total = self._strategy.run(_total, args=(flat,))
            sizes = [tf.size(tensors[index]) for index in indices]
            for index, part in zip(indices, tf.split(total, sizes), strict=True):
                found[index] = tf.reshape(part, tf.shape(tensors[index]))
                found[index].set_shape(tensors[index].shape)
        return found


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # has no types
def _total(flat: Any) -> Any:
    """Return a sum over all ranks; of the copy, which unlike the original knows its device."""
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(flat))


def _take_device(local_rank: int) -> None:
    """Use one of the GPUs that all ranks on this machine see."""
    devices = tf.config.list_physical_devices("GPU")
    if len(devices) > 1:
        tf.config.set_visible_devices(devices[local_rank % len(devices)], "GPU")


def _meeting(
    ranks: core.DistributedContext, environment: dict[str, str], kept: contextlib.ExitStack
) -> Any:
    """Return where all ranks wait for each other, on ports that the system keeps for them."""
    chief = urlsplit(f"//{environment[protocol.CHIEF_VARIABLE]}").hostname
    assert chief is not None
    host = _own_address(chief)
    port = kept.enter_context(socket.socket(_family(host)))
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind((host, 0))
    shown = f"[{host}]" if ":" in host else host
    workers = ranks.allgather(f"{shown}:{port.getsockname()[1]}")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers}),
        task_type="worker",
        task_id=ranks.rank,
        rpc_layer="grpc",
    )


def _own_address(chief: str) -> str:
    """Return this machine's address as the chief's machine sees it."""
    ((family, kind, number, _, address), *_) = socket.getaddrinfo(
        chief, _PROBE_PORT, type=socket.SOCK_DGRAM
    )
    with socket.socket(family, kind, number) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
