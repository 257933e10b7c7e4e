"""Trial: the base class of users' trials: a model, its data, and the step of a batch."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rung.torch.callback import Callback
from rung.torch.data.training_data import records_of
from rung.training.averages import Reducer

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from rung.torch.context import TrialContext


class Trial(abc.ABC):
    """A model and how to train it; the trainer owns the loop around it.

    In `__init__`, create models, optimizers and schedulers and pass them to the context's `wrap_…`
    methods, which put them on the device and into checkpoints. For further state, define
    `state_dict` and `load_state_dict`.

    The trainer puts the models into training mode before the first batch; layers that are to stay
    in evaluation mode are put there in a callback's `on_training_start`.
    """

    @abc.abstractmethod
    def __init__(self, context: TrialContext) -> None: ...

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return a DataLoader over the training data; any sampler, any number of workers."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return a DataLoader over the validation data."""

    @abc.abstractmethod
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train on a batch, which is on the device, and return its metrics or its loss.

        Args:
            batch: what the loader yielded.
            epoch_idx: the epoch, counted from 0.
            batch_idx: the batch, counted from 0 over all epochs.
        """

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the validation metrics of a batch, which is on the device.

        A second parameter, where there is one, gets the batch's number.
        """
        raise NotImplementedError("define evaluate_batch or evaluate_full_dataset")

    def evaluate_full_dataset(self, data_loader: DataLoader[Any]) -> Mapping[str, Any]:
        """Return the validation metrics of the whole set; used instead if it is defined."""
        raise NotImplementedError("define evaluate_batch or evaluate_full_dataset")

    def evaluation_reducer(self) -> Reducer | Mapping[str, Reducer]:
        """Return how the metrics of the validation batches are reduced to one number each."""
        return Reducer.AVG

    def build_callbacks(self) -> Mapping[str, Callback]:
        """Return callbacks by name; in checkpoints their states have these names."""
        return {}

    def get_batch_length(self, batch: Any) -> int:
        """Return how many records a batch holds; override it for unusual batch structures."""
        records = records_of(batch)
        if records is None:
            raise TypeError(
                f"cannot tell how many records a batch of {type(batch).__name__} holds: define "
                "get_batch_length"
            )
        return records
