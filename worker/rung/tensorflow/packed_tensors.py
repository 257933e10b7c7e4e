"""Many tensors of TensorFlow as a few large ones, for their way to the other ranks."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def packed(tensors: Sequence[Any], total: Callable[[Any], Any]) -> list[Any]:
    """Return what becomes of tensors when all elements of one type are summed in one go.

    Args:
        tensors: of any types and shapes.
        total: returns the sum over all ranks of a tensor with one dimension.
    """
    found: list[Any] = list(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        indices = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = tf.concat([tf.reshape(tensors[index], [-1]) for index in indices], 0)
        sizes = [tf.size(tensors[index]) for index in indices]
        for index, part in zip(indices, tf.split(total(flat), sizes), strict=True):
            found[index] = tf.reshape(part, tf.shape(tensors[index]))
            found[index].set_shape(tensors[index].shape)
    return found
