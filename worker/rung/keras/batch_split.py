"""A batch of Keras: this rank's part of it, and a number that tells it from another."""

from typing import Any

import keras

from rung.keras.collectives import Span
from rung.training.errors import NotResumable


def leaves(data: Any) -> list[Any]:
    """Return the tensors of a batch."""
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def cut(data: Any, span: Span) -> Any:
    """Return a part of a batch.

    Raises:
        NotResumable: a tensor of it cannot be cut.
    """
    return keras.tree.map_structure(lambda leaf: _cut(leaf, span), data)


def told(data: Any) -> Any:
    """Return a number that tells a batch from another: of its targets, if it has some."""
    ops = keras.ops
    targets = leaves(data[1]) if isinstance(data, tuple | list) and len(data) > 1 else []
    total = ops.zeros((), "float32")
    for leaf in targets or leaves(data):
        if _is_ragged(leaf) or keras.backend.standardize_dtype(leaf.dtype) == "string":
            continue
        rows = ops.cast(leaf, "float32")
        if len(rows.shape) > 1:
            rows = ops.sum(rows, axis=tuple(range(1, len(rows.shape))))
        places = ops.cumsum(ops.ones_like(rows))
        total += ops.sum(ops.where(ops.isfinite(rows), rows, 0.0) * places)
    return total


def _cut(leaf: Any, span: Span) -> Any:
    if leaf is None:
        return None
    if _is_ragged(leaf):
        raise NotResumable(
            f"a batch holds a {type(leaf).__name__}, which several slots cannot share: make it "
            "dense before it comes to fit(), or set slots_per_trial: 1"
        )
    return leaf[span.start : span.stop]


def _is_ragged(leaf: Any) -> bool:
    """Return whether a tensor has no rows of one shape."""
    return type(leaf).__name__ in {"SparseTensor", "RaggedTensor"}
