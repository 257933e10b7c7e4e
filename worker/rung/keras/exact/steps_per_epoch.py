"""An epoch that is not one pass over the training data.

Where `fit` is given `steps_per_epoch`, Keras reads on in one iterator from epoch to epoch. A run
that goes on has a new one, whose position cannot be set, unless the data are a tf.data pipeline
without an end.
"""

from typing import Any

from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from rung.training.errors import NotResumable


def refuse_pieces(data: Any, *, tensorflow: bool) -> None:
    """See to it that each epoch begins with an iterator of its own, or that the data never end.

    Args:
        data: Keras' iterator over epochs.
        tensorflow: whether the backend is TensorFlow.

    Raises:
        NotResumable: epochs are pieces of the data.
    """
    if not data.steps_per_epoch:
        return
    if tensorflow and _is_endless(data.data_adapter):
        return
    steps, length = data.steps_per_epoch, data.data_adapter.num_batches
    if steps == length:
        data.steps_per_epoch = None  # with it, Keras makes an epoch's iterator in the one before
        return
    known = "data of unknown length" if length is None else f"data of {length} batches"
    endless = ", or end a tf.data pipeline with .repeat()" if tensorflow else ""
    raise NotResumable(
        f"fit(steps_per_epoch={steps}) reads {known} piece by piece, and a run that goes on would "
        "not find its place in them: leave steps_per_epoch out and give data that end, such as "
        f"arrays or a PyDataset{endless}"
    )


def _is_endless(adapter: Any) -> bool:
    import tensorflow as tf  # noqa: PLC0415 - loaded by the backend

    return (
        isinstance(adapter, TFDatasetAdapter)
        and isinstance(adapter._dataset, tf.data.Dataset)
        and int(adapter._dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    )
