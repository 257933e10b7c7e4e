"""The training data and the position in it.

The loader that a trial builds, a torch DataLoader or a StatefulDataLoader, is rebuilt as a
StatefulDataLoader with the order of `rung.torch.data.sampler`; its state is the position within an
epoch. An IterableDataset that shuffles or augments in worker processes resumes exactly only if its
`state_dict` and `load_state_dict` include its generators.

With several ranks the batches of the loader are of all ranks together (where its batch size is a
rank's part of `global_batch_size`, they are enlarged: `rung.training.batch_size`), and each rank
fetches its part. The position counts batches, so it is valid for any number of ranks.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from rung import core
from rung.torch.data.iterable_sharding import part_of_stream
from rung.torch.data.sampler import EpochOrder, SeededDataset, known_length, refuse_shared
from rung.training.batch_size import BatchSize, Given, agreed
from rung.training.seeds import Domain, derive
from rung.training.shares import WHOLE, Part
from rung.training.units import InvalidPlan

_SAMPLERS: Final = "rung_samplers"
_TORCHS: Final = ("torch.", "torchdata.")
"""Batch samplers of these modules consist of a sampler, a size and `drop_last`."""


class TrainingData:
    """A loader's batches, epoch by epoch, from any position."""

    def __init__(
        self,
        loader: Any,
        seed: int,
        ranks: core.DistributedContext | None = None,
        global_batch_size: int | None = None,
    ) -> None:
        """Rebuild a loader.

        Args:
            loader: that the trial built.
            seed: of the trial.
            ranks: that share the data; None: a single process.
            global_batch_size: the hyperparameter, if it is set.

        Raises:
            InvalidPlan: the ranks cannot share its batches; the message says why.
        """
        if not isinstance(loader, DataLoader):
            raise TypeError(
                "build_training_data_loader must return a torch DataLoader or a "
                f"StatefulDataLoader, not {type(loader).__name__}"
            )
        self._seed = seed
        self._ranks = ranks
        self._part = Part(ranks.rank, ranks.size) if ranks is not None else WHOLE
        self._batch = 0
        self._stand_in: Any = None
        self._full = 0
        self.batch_size: BatchSize | None = None
        """The batch size of all ranks; None: the loader has none."""
        self.share = 1.0
        """This rank's part of the last batch."""
        self.records: int | None = None
        """Records of the last batch of all ranks; None: count those of this one."""
        self._dataset: Any = loader.dataset
        self._generator = torch.Generator()
        self._order: EpochOrder | None = None
        self._loader = self._rebuild(loader, global_batch_size)
        self._batches: Any = None
        self._finished = False
        self.length = _length(self._dataset, self._inner)
        """Batches of an epoch; None if it is not known before the end of the data."""
        if self.length == 0:
            raise ValueError("the training data loader has no batches; is the data set empty?")

    def start(self, epoch: int, state: dict[str, Any] | None, batch: int = 0) -> None:
        """Begin an epoch, or resume within it after `batch` batches, from a `state`."""
        self._batch = batch
        if self._order is not None:
            self._order.epoch = epoch
        self._generator.manual_seed(derive(self._seed, Domain.LOADER, epoch))
        state = dict(state or {})
        samplers = state.pop(_SAMPLERS, None)
        if self._order is not None:
            self._order.resume_samplers(samplers)
        if state:
            self._loader.load_state_dict(state)
            self._loader.state_dict()  # makes it apply the state, for which it may draw numbers
            self._generator.manual_seed(derive(self._seed, Domain.LOADER, epoch))
        self._batches = iter(self._loader)
        self._finished = False

    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the epoch is over.
        """
        try:
            if self._part.size == 1:
                return next(self._batches)
            batch = self._agreed() if self._order is None else self._known(self._order)
        except StopIteration:
            self._finished = True
            raise
        self._batch += 1
        return batch

    def _known(self, order: EpochOrder) -> Any:
        """Return this rank's part of a batch whose length all ranks know."""
        batch = next(self._batches)
        self.records = order.lengths[self._batch]
        self.share = self._part.count(self.records) / self.records
        return batch

    def _agreed(self) -> Any:
        """Return this rank's part of a batch of a stream, after the ranks exchanged its length.

        Short batches that are to be dropped are read nevertheless, so that all ranks reach the end
        of the stream, and only the incomplete batch of each worker is dropped.
        """
        assert self._ranks is not None
        while True:
            batch = next(self._batches, None)
            own = 0 if batch is None else _counted(batch)
            said = self._ranks.allgather((own, batch is None and self._stand_in is None))
            counts = [count for count, _ in said]
            self.records = sum(counts)
            if not self.records:
                raise StopIteration
            if not self._drop_last or self.records >= self._full:
                break
        if any(without for _, without in said):
            self._lend(batch, counts)
        if batch is not None:
            self._stand_in = batch
        self.share = own / self.records
        return self._stand_in

    def _lend(self, batch: Any, counts: list[int]) -> None:
        """Send ranks that never had a part another rank's part, to compute with weight 0."""
        assert self._ranks is not None
        lender = next(rank for rank, count in enumerate(counts) if count)
        lent = self._ranks.allgather(batch if lender == self._ranks.rank else None)[lender]
        if self._stand_in is None:
            self._stand_in = lent

    def finish(self) -> None:
        """Let the loader reach its end after the last batch."""
        if next(self._batches, None) is not None:
            raise RuntimeError("the training data loader yields more batches than its length")
        self._finished = True

    def state(self) -> dict[str, Any] | None:
        """Return the position; None between epochs, where the next epoch's number suffices."""
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

    def _shared(self, loader: DataLoader[Any], wanted: int | None) -> Any:
        """Return the loader's batch sampler, or sampler, with batches of all ranks."""
        inner = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        several = self._part.size > 1
        if several:
            refuse_shared(inner, "training")
        if several and loader.batch_size is None and loader.batch_sampler is None:
            raise InvalidPlan(
                "the training data loader has batch_size=None, so its batches cannot be shared "
                "between slots: give it a batch size, or a batch_sampler"
            )
        given = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        if not isinstance(given, int):
            return inner
        field, means = "the training data loader's batch size", Given.EITHER
        torchs = isinstance(inner, BatchSampler) and type(inner).__module__.startswith(_TORCHS)
        if not torchs:
            field, means = f"batch_size of the {type(inner).__name__}", Given.TOGETHER
        size = agreed(given, self._part.size, field, means, wanted=wanted)
        self.batch_size = size
        self._full = size.together if several else 0
        if isinstance(inner, BatchSampler) and size.together != given:
            return BatchSampler(inner.sampler, size.together, inner.drop_last)
        return inner

    def _rebuild(self, loader: DataLoader[Any], wanted: int | None) -> Any:
        self._inner = self._shared(loader, wanted)
        self._drop_last = bool(loader.drop_last)
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
            if self._part.size > 1:
                options |= {"batch_size": self._part.count(self._full), "drop_last": False}
            return _stateful(part_of_stream(dataset, self._part, self._full), options)
        tagged = loader.num_workers > 0
        self._order = EpochOrder(self._inner, self._seed, tagged=tagged, part=self._part)
        if tagged:
            dataset = SeededDataset(dataset)
        if loader.batch_sampler is None:
            return _stateful(dataset, options | {"batch_size": None, "sampler": self._order})
        return _stateful(dataset, options | {"batch_sampler": self._order})


def _stateful(dataset: Any, options: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital'")  # torchdata's call, not ours
        return StatefulDataLoader(dataset, **options)


def _length(dataset: Any, inner: Any) -> int | None:
    if isinstance(dataset, IterableDataset):
        return None
    return known_length(inner)


def _counted(batch: Any) -> int:
    """Return how many records a part of a stream's batch holds."""
    records = records_of(batch)
    if records is None:
        raise InvalidPlan(
            f"cannot tell how many records a batch of {type(batch).__name__} holds, so a stream "
            "of them cannot be shared between slots: have the collate function return tensors, "
            "alone or in a list, a tuple, a dict or a dataclass"
        )
    return records


def records_of(batch: Any) -> int | None:
    """Return how many records a batch holds: the first dimension of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else 1
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        batch = [getattr(batch, field.name, None) for field in dataclasses.fields(batch)]
    if isinstance(batch, list | tuple):
        for part in batch:
            records = records_of(part)
            if records is not None:
                return records
    return None
