"""The training data and the position in it.

The loader that a trial builds, a plain torch DataLoader or a StatefulDataLoader, is rebuilt as a
StatefulDataLoader with the order of `rung.torch.order`; its state is the position within an
epoch. An IterableDataset that shuffles or augments in worker processes resumes exactly only if it
has `state_dict` and `load_state_dict` of its own that hold what it drew from.
"""

import warnings
from collections.abc import Sized
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from rung.torch.order import EpochOrder, SeededDataset
from rung.torch.rng import derive

_BASE: Final = 3
_SAMPLERS: Final = "rung_samplers"


class TrainingData:
    """A loader's batches, epoch by epoch, from any position."""

    def __init__(self, loader: Any, seed: int) -> None:
        if not isinstance(loader, DataLoader):
            raise TypeError(
                "build_training_data_loader must return a torch DataLoader or a "
                f"StatefulDataLoader, not {type(loader).__name__}"
            )
        self._seed = seed
        self._dataset: Any = loader.dataset
        self._generator = torch.Generator()
        self._order: EpochOrder | None = None
        self._loader = self._rebuild(loader)
        self._batches: Any = None
        self._finished = False
        self.batch_size: int | None = loader.batch_size
        self.length = _length(loader)
        """Batches of an epoch; None where only the end of the data tells."""
        if self.length == 0:
            raise ValueError("the training data loader has no batches; is the data set empty?")

    def start(self, epoch: int, state: dict[str, Any] | None) -> None:
        """Begin an epoch, or go on within it from the state that `state` returned."""
        if self._order is not None:
            self._order.epoch = epoch
        self._generator.manual_seed(derive(self._seed, _BASE, epoch))
        state = dict(state or {})
        samplers = state.pop(_SAMPLERS, None)
        if self._order is not None:
            self._order.resume_samplers(samplers)
        if state:
            self._loader.load_state_dict(state)
            self._loader.state_dict()  # makes it take the state in, whatever it draws for that
            self._generator.manual_seed(derive(self._seed, _BASE, epoch))
        self._batches = iter(self._loader)
        self._finished = False

    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the epoch is over.
        """
        return next(self._batches)

    def finish(self) -> None:
        """Let the loader notice that its last batch was its last."""
        if next(self._batches, None) is not None:
            raise RuntimeError("the training data loader yields more batches than its length")
        self._finished = True

    def state(self) -> dict[str, Any] | None:
        """Return the position; None between epochs, where the number of the next one says all."""
        samplers = self._order.sampler_states() if self._order is not None else None
        state: dict[str, Any] = {}
        if not self._finished or hasattr(self._dataset, "state_dict"):
            state |= self._loader.state_dict()
        if samplers is not None:
            state[_SAMPLERS] = samplers if not self._finished else samplers | {"start": []}
        return state or None

    @property
    def parts(self) -> list[Any]:
        """The data set, and the samplers that the loader was given."""
        return [self._dataset, *(self._order.samplers if self._order is not None else [])]

    def _rebuild(self, loader: DataLoader[Any]) -> Any:
        dataset = self._dataset
        options: dict[str, Any] = {
            "num_workers": loader.num_workers,
            "collate_fn": loader.collate_fn,
            "pin_memory": loader.pin_memory,
            "timeout": loader.timeout,
            "worker_init_fn": loader.worker_init_fn,
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "generator": self._generator,
        }
        if isinstance(dataset, IterableDataset):
            options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
            return _stateful(dataset, options)
        tagged = loader.num_workers > 0
        inner = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._order = EpochOrder(inner, self._seed, tagged=tagged)
        if tagged:
            dataset = SeededDataset(dataset)
        if loader.batch_sampler is None:
            return _stateful(dataset, options | {"batch_size": None, "sampler": self._order})
        return _stateful(dataset, options | {"batch_sampler": self._order})


def _stateful(dataset: Any, options: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital'")  # torchdata's call, not ours
        return StatefulDataLoader(dataset, **options)


def _length(loader: DataLoader[Any]) -> int | None:
    if isinstance(loader.dataset, IterableDataset):
        return None
    inner = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return len(inner) if isinstance(inner, Sized) else None


def records_of(batch: Any) -> int | None:
    """Return how many records a batch holds: the first dimension of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else 1
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for part in batch:
            records = records_of(part)
            if records is not None:
                return records
    return None
