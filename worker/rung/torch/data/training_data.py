"""The training data and the position in it.

The loader that a trial builds, a torch DataLoader or of a subclass, is copied with the order of
`rung.torch.data.sampler`; class and options stay. The position within an epoch is

    data with an index         the number of batches: earlier entries of the order are left out
    a stream, a data set       the state of a StatefulDataLoader. An IterableDataset that shuffles
    with a state               or augments in worker processes resumes exactly only if its
                               `state_dict` and `load_state_dict` include its generators
    a class with an            its own state, if it has `state_dict` and `load_state_dict`;
    `__iter__` of its own      otherwise the batches before are read again

The batches of a stream, and what a state means, depend on the number of workers: such an epoch
goes on with as many as it began with, and the next one has those of the script.

With several ranks the batches of the loader are of all ranks together (where its batch size is a
rank's part of `global_batch_size`, they are enlarged: `rung.training.batch_size`), and each rank
fetches its part. The position counts batches, so it is valid for any number of ranks. With
`batch_size=None` each rank fetches the whole batch and keeps its part. Of a stream that shards
itself (`rung.torch.data.stream`) each rank has batches and a position of its own; on another
number of ranks its epoch begins anew.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import structlog
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from rung import core
from rung.torch.data import loader_copy
from rung.torch.data.iterable_sharding import PartOfStream, part_of_stream
from rung.torch.data.sampler import EpochOrder, SeededDataset, known_length, refuse_shared
from rung.torch.data.stream import refuse_apart, shards_itself
from rung.torch.determinism import is_kept
from rung.torch.pytree import cut
from rung.training.batch_size import BatchSize, Given, agreed
from rung.training.seeds import Domain, derive
from rung.training.shares import WHOLE, Part
from rung.training.units import InvalidPlan

_BATCHES: Final = "rung_batches"
_RANKS: Final = "rung_ranks"
_SAMPLERS: Final = "rung_samplers"
_WORKERS: Final = "rung_workers"
_TORCHS: Final = ("torch.", "torchdata.")
"""Batch samplers of these modules consist of a sampler, a size and `drop_last`."""

_log = structlog.get_logger("rung")


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
        self._name: Final = type(loader).__name__
        self._generator = torch.Generator()
        self._order: EpochOrder | None = None
        streams = isinstance(self._dataset, IterableDataset)
        several = ranks is not None and ranks.size > 1
        self.shards_itself: Final = bool(
            several
            and streams
            and shards_itself("training", self._dataset, loader, slots=self._part.size)
        )
        """Whether the data are a stream that gives each of several ranks records of its own."""
        if ranks is not None and several and not streams:
            refuse_apart(ranks, self._dataset, "training")
        self._inner = self._shared(loader, global_batch_size)
        self._cuts = several and not self.shards_itself and not self._by_records(loader)
        own_iter = loader_copy.has_own_iter(loader)
        self._reads_again: Final = own_iter and not is_kept(loader)
        self._has_state: Final = not self._reads_again and (
            own_iter or streams or is_kept(self._dataset)
        )
        self._by_workers: Final = self._has_state or streams
        """Whether a position within an epoch depends on the number of workers."""
        if self._has_state:
            loader = loader_copy.with_position(loader)
        self._loader = self._of_stream(loader) if streams else self._of_index(loader)
        self._reading: Any = self._loader
        self._batches: Any = None
        self._finished = False
        self.length = None if streams else known_length(self._inner)
        """Batches of an epoch; None if it is not known before the end of the data."""
        if own_iter and not several and not streams:
            self.length = known_length(loader)
        if self.length == 0:
            raise ValueError("the training data loader has no batches; is the data set empty?")

    def start(self, epoch: int, state: dict[str, Any] | None, batch: int = 0) -> None:
        """Begin an epoch, or resume within it after `batch` batches, from a `state`."""
        state = self._of_rank(state)
        self._batch = batch = state.pop(_BATCHES, batch)
        workers = state.pop(_WORKERS, self._loader.num_workers)
        samplers = state.pop(_SAMPLERS, None)
        if self._order is not None:
            skipped = 0 if self._has_state or self._reads_again else batch
            self._order.begin(epoch, skipped)
            self._order.resume_samplers(samplers)
        self._generator.manual_seed(derive(self._seed, Domain.LOADER, epoch))
        self._reading = self._with_workers(workers)
        if self._order is not None:
            self._order.tagged = self._reading.num_workers > 0
        if isinstance(self._reading.dataset, PartOfStream):
            self._reading.dataset.rung_epoch = epoch
        if state and self._has_state:
            self._reading.load_state_dict(state)
            if not loader_copy.has_own_iter(self._reading):
                self._reading.state_dict()  # makes it apply the state, for which it may draw
            self._generator.manual_seed(derive(self._seed, Domain.LOADER, epoch))
        self._batches = iter(self._reading)
        self._finished = False
        if self._reads_again:
            for _ in range(batch):
                next(self._batches)

    def _of_rank(self, state: dict[str, Any] | None) -> dict[str, Any]:
        """Return this rank's part of a state; nothing of one of a stream on other ranks."""
        state = dict(state or {})
        states = state.pop(_RANKS, None)
        if states is not None and len(states) == self._part.size:
            return dict(states[self._part.rank])
        if states is None and not (self.shards_itself and state):
            return state
        if self._part.rank == 0:
            _log.warning(
                f"the data set {type(self._dataset).__name__} shards itself, so a position on"
                f" {_slots(len(states or [None]))} is none on {_slots(self._part.size)}: the epoch"
                " begins anew, and records of it are trained again"
            )
        return {_BATCHES: 0}

    def _with_workers(self, number: int) -> Any:
        """Return the loader for an epoch that began with a number of workers."""
        own = self._loader.num_workers
        if number == own:
            return self._loader
        if not self._by_workers:
            if bool(number) != bool(own) and self._part.rank == 0:
                _log.warning(
                    f"num_workers was {number} and is {own}: the order of the data is the same,"
                    " but what a data set draws at random is drawn in this process without"
                    " workers, so a resumed run draws other numbers"
                )
            return self._loader
        if self._part.rank == 0:
            _log.warning(
                f"num_workers was {number} and is {own}: the position in the data set"
                f" {type(self._dataset).__name__} depends on it, so this epoch goes on with"
                f" {number}, and the next one has {own}"
            )
        loader = loader_copy.with_workers(self._loader, number)
        if self._order is None:
            return loader
        return loader_copy.copied(loader, dataset=self._fetched_by(number))

    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the epoch is over.
        """
        try:
            if self._part.size == 1:
                batch = next(self._batches)
            elif self._cuts:
                batch = self._cut(next(self._batches))
            else:
                batch = self._agreed() if self._order is None else self._known(self._order)
        except StopIteration:
            self._finish()
            raise
        self._batch += 1
        if self._order is not None and not self._order.opened:
            self._left_out()
        return batch

    def _left_out(self) -> None:
        """Refuse, or log, that a loader of the script's own class does not read the order.

        Raises:
            InvalidPlan: several ranks have its whole batches.
        """
        text = f"the training data loader, a {self._name}, does not read its batch_sampler anew"
        if self._part.size > 1:
            raise InvalidPlan(
                f"{text} in each epoch, so its batches cannot be shared between slots: use a"
                " torch DataLoader, or resources.slots_per_trial: 1"
            )
        assert self._order is not None
        self._order.opened = True
        _log.warning(f"{text}: its order is its own, and a resumed run may train other batches")

    def _cut(self, batch: Any) -> Any:
        """Return this rank's part of a batch that every rank has."""
        records = records_of(batch)
        if not records:
            raise InvalidPlan(_UNCOUNTED.format(type(batch).__name__))
        self.records = records
        self.share = self._part.count(records) / records
        return cut(batch, self._part.given(records), records)

    def _known(self, order: EpochOrder) -> Any:
        """Return this rank's part of a batch whose length all ranks know."""
        batch = next(self._batches)
        if order.opened:
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
        self._finish()

    def _finish(self) -> None:
        self._finished = True
        order = self._order
        if order is None or self._part.size == 1 or self._cuts:
            return
        if self._batch != len(order.lengths):
            raise RuntimeError(
                f"the training data loader, a {self._name}, yields {self._batch} batches for"
                f" {len(order.lengths)} of its batch_sampler: on several slots it must yield one"
                " for each, so that the parts of the slots belong together"
            )

    def state(self) -> dict[str, Any] | None:
        """Return the position; None between epochs, where the next epoch's number suffices.

        With a stream that shards itself all ranks must call this.
        """
        state: dict[str, Any] = {}
        if self._has_state and (not self._finished or is_kept(self._dataset)):
            state |= self._reading.state_dict()
        elif not self._has_state and not self._finished:
            state[_BATCHES] = self._batch
        if state:
            state[_WORKERS] = self._reading.num_workers
        samplers = self._order.sampler_states() if self._order is not None else None
        if samplers is not None:
            state[_SAMPLERS] = samplers if not self._finished else samplers | {"start": []}
        if self.shards_itself:
            assert self._ranks is not None
            states = self._ranks.allgather(state)
            return {_RANKS: states} if any(states) else None
        return state or None

    @property
    def dataset(self) -> Any:
        """The data set of the script."""
        return self._dataset

    @property
    def parts(self) -> list[Any]:
        """The data set, and the samplers that the loader was given."""
        return [self._dataset, *self.samplers]

    @property
    def samplers(self) -> list[Any]:
        """The samplers that the loader was given; their states are part of the position."""
        return self._order.samplers if self._order is not None else []

    def _shared(self, loader: DataLoader[Any], wanted: int | None) -> Any:
        """Return the loader's batch sampler, or sampler, with batches of all ranks."""
        inner = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        several = self._part.size > 1
        if several:
            refuse_shared(inner, "training")
        given = loader.batch_size or getattr(inner, "batch_size", None)
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

    def _by_records(self, loader: DataLoader[Any]) -> bool:
        """Return whether the entries of a loader's sampler list records, which ranks can share."""
        return loader.batch_sampler is not None or isinstance(self._inner, BatchSampler)

    def _of_stream(self, loader: DataLoader[Any]) -> Any:
        """Return a loader for this rank's part of a stream."""
        self._drop_last = bool(loader.drop_last) and not self.shards_itself
        changes: dict[str, Any] = {"generator": self._generator}
        if not self.shards_itself:
            batch = 0 if self._cuts else self._full
            changes["dataset"] = part_of_stream(self._dataset, self._part, batch, self._seed)
        if self._full and loader.batch_size is not None:
            own = self._part.count(self._full)
            drop_last = bool(loader.drop_last) and self.shards_itself
            changes |= {
                "batch_sampler": BatchSampler(loader.sampler, own, drop_last),
                "batch_size": own,
                "drop_last": drop_last,
            }
        return loader_copy.copied(loader, **changes)

    def _of_index(self, loader: DataLoader[Any]) -> Any:
        """Return a loader for this rank's part of data with an index."""
        self._drop_last = False
        part = WHOLE if self._cuts else self._part
        order = EpochOrder(self._inner, self._seed, tagged=False, part=part)
        self._order = order
        changes = {"generator": self._generator, "dataset": self._fetched_by(loader.num_workers)}
        if not getattr(loader, "in_order", True):
            changes["in_order"] = self._unordered()
        if loader.batch_sampler is None:
            return loader_copy.copied(loader, sampler=order, **changes)
        return loader_copy.with_batches(loader, order, **changes)

    def _fetched_by(self, workers: int) -> Any:
        """Return the data set as so many workers fetch from it."""
        return SeededDataset(self._dataset) if workers else self._dataset

    def _unordered(self) -> bool:
        """Log what in_order=False costs; return whether batches are in order all the same."""
        several = self._part.size > 1
        if self._part.rank == 0:
            _log.warning(
                "the training data loader has in_order=False, which on several slots has no"
                " effect, because their parts of a batch belong together"
                if several
                else "the training data loader has in_order=False: batches come in the order in"
                " which workers are ready, so a resumed run may leave some out and train others"
                " twice; leave it out"
            )
        return several


_UNCOUNTED: Final = (
    "the training data loader has batch_size=None, and of a batch of type {} it cannot be told"
    " which part is whose: give batches of tensors, alone or in a list, a tuple, a dict or a"
    " dataclass, or give the loader a batch size, or a batch_sampler"
)


def _slots(number: int) -> str:
    return f"{number} slot" + ("s" if number != 1 else "")


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
