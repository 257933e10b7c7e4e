"""What makes TensorFlow exact; what cannot be is named in the log.

Operators such as `tf.random.normal` and `tf.nn.dropout` have a state of their own that cannot be
read. A run that goes on starts them over, so it draws other numbers than the unbroken one.
"""

import os
from typing import Any, Final

import structlog
import tensorflow as tf

from rung import core
from rung.training.determinism import deterministic

_STATEFUL: Final = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)

_log = structlog.get_logger(__name__)


def demand_or_tell(run: core.Context) -> None:
    """Have operators be deterministic, if the experiment asks; or say where they are not."""
    if deterministic(run):
        tf.config.experimental.enable_op_determinism()
    elif run.distributed.is_chief and tf.config.list_physical_devices("GPU"):
        _log.warning(
            "operators on GPUs may add in another order each time; for the same bits set "
            "reproducibility: {deterministic: true}"
        )


def machine() -> dict[str, str]:
    """Return what the last bits of a result depend on, beside the program."""
    found = {"TensorFlow": tf.__version__, "processors": str(os.cpu_count())}
    for device in tf.config.list_physical_devices("GPU")[:1]:
        details = tf.config.experimental.get_device_details(device)
        found["GPU"] = str(details.get("device_name", "unknown"))
    return found


def stateful_operators(graph: Any) -> list[str]:
    """Return the random operators of a graph that have a state of their own."""
    return sorted({each.type for each in graph.get_operations()} & _STATEFUL)


def tell() -> None:
    """Say which operators of the function that is being traced start over in each run."""
    if tf.executing_eagerly():
        return
    found = stateful_operators(tf.compat.v1.get_default_graph())
    if found:
        _log.warning(
            "a run that goes on draws other numbers here than an unbroken one: these operators "
            "have a state of their own, which no checkpoint can hold. Use keras.layers, "
            "keras.random, tf.random.stateless_*, or a tf.random.Generator in keep={…}",
            operators=", ".join(found),
        )
