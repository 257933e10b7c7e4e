"""What cannot be exact is named.

Operators such as `tf.random.normal` and `tf.nn.dropout` have a state of their own that nobody can
read. A run that goes on begins them anew, so it draws other numbers than the unbroken one.
"""

from typing import Any, Final

import structlog
import tensorflow as tf

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


def stateful_operators(graph: Any) -> list[str]:
    """Return the random operators of a graph that have a state of their own."""
    return sorted({each.type for each in graph.get_operations()} & _STATEFUL)


def tell() -> None:
    """Say which operators of the function that is being traced begin anew in each run."""
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
