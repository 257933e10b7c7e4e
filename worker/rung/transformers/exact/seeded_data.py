"""Training data whose draws do not depend on when, where, or in what order they are fetched.

The trainer reads ahead, and a resumed epoch does not read what it skips. So each sample is
fetched, and each batch collated (masking draws there), with generators seeded for it: from the
trial's seed, the epoch and the sample's index; afterwards they are as they were before. A sample
of a stream has its number in the pass instead, and that of the worker process that reads it.

What the trainer, or a script of its own, makes the loader of stays what it was: only the finished
loader gets other data.
"""

import itertools
import operator
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from rung.torch.data.dataset_proxy import Forwarding
from rung.training.errors import NotResumable
from rung.training.rng import isolated
from rung.training.seeds import Domain, derive


class Seeds:
    """What the draws of an epoch follow from, seen by worker processes that outlive an epoch."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        epoch = torch.zeros((), dtype=torch.int64)
        self._epoch = epoch.share_memory_()  # type: ignore[no-untyped-call]  # torch's own

    def begin(self, epoch: int) -> None:
        """Begin an epoch, or go on in it."""
        self._epoch.fill_(epoch)

    def of(self, domain: Domain, *numbers: int) -> int:
        """Return the seed of a sample or a batch of this epoch."""
        return derive(self._seed, domain, int(self._epoch), *numbers)


class SeededData(Forwarding, Dataset[Any]):
    """A data set with an index, fetched from with generators seeded for each sample."""

    def __init__(self, inner: Any, seeds: Seeds) -> None:
        self.rung_inner = inner
        self.rung_seeds = seeds
        self.rung_last: tuple[int, ...] = ()
        """What tells the sample fetched last, in this process, from others of the epoch."""

    def __len__(self) -> int:
        return len(self.rung_inner)

    def __getitem__(self, index: Any) -> Any:
        self.rung_last = (_number(index),)
        with isolated(self.rung_seeds.of(Domain.SAMPLE, *self.rung_last)):
            return self.rung_inner[index]


class SeededStream(Forwarding, IterableDataset[Any]):
    """A data set without an index, read with generators seeded for each sample."""

    def __init__(self, inner: Any, seeds: Seeds) -> None:
        self.rung_inner = inner
        self.rung_seeds = seeds
        self.rung_last: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.rung_inner)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        own = 0 if worker is None else worker.id
        samples: Iterator[Any] | None = None
        for number in itertools.count():
            self.rung_last = (own, number)
            with isolated(self.rung_seeds.of(Domain.SAMPLE, *self.rung_last)):
                samples = iter(self.rung_inner) if samples is None else samples
                try:
                    sample = next(samples)
                except StopIteration:
                    return
            yield sample


class SeededCollator:
    """Makes batches with generators seeded by the last sample of each."""

    def __init__(self, inner: Any, data: SeededData | SeededStream) -> None:
        self._inner = inner
        self._data = data

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch."""
        with isolated(self._data.rung_seeds.of(Domain.COLLATION, *self._data.rung_last)):
            return self._inner(samples)


def seed_data(trainer: Any, seeds: Seeds) -> None:
    """Have a trainer's training data fetched with seeded generators."""
    original = trainer.get_train_dataloader

    def get_train_dataloader() -> Any:
        loader = original()
        seed_loader(loader, seeds)
        return loader

    trainer.get_train_dataloader = get_train_dataloader


def seed_evaluations(trainer: Any, seed: int, moment: Callable[[], int]) -> None:
    """Have validation data fetched so, too.

    Then what they draw depends neither on the number of workers, nor on what those drew before,
    and what training draws not on how often it is validated.

    Args:
        trainer: whose loaders they are.
        seed: the trial's.
        moment: how many batches are trained; it takes the epoch's place.
    """
    original = trainer.get_eval_dataloader
    seeds = Seeds(derive(seed, Domain.EVALUATION))

    def get_eval_dataloader(*arguments: Any, **named: Any) -> Any:
        loader = original(*arguments, **named)
        seeds.begin(moment())
        seed_loader(loader, seeds)
        return loader

    trainer.get_eval_dataloader = get_eval_dataloader


def seed_loader(loader: Any, seeds: Seeds) -> None:
    """Have a loader fetch and collate with seeded generators.

    Args:
        loader: torch's, or Accelerate's around one of torch's.
        seeds: for the draws.

    Raises:
        NotResumable: it is another loader.
    """
    own = getattr(loader, "base_dataloader", loader)
    if not isinstance(own, DataLoader):
        raise NotResumable(
            f"the trainer's data loader is a {type(own).__name__}, whose draws no run could "
            "repeat when a run goes on: let get_train_dataloader() return a torch DataLoader"
        )
    data: Any = own.dataset
    if isinstance(data, SeededData | SeededStream):  # of a loader that the script keeps
        data.rung_seeds = seeds
        return
    kind = SeededStream if isinstance(data, IterableDataset) else SeededData
    data = kind(data, seeds)
    object.__setattr__(own, "dataset", data)  # the loader's own way refuses
    own.collate_fn = SeededCollator(own.collate_fn, data)
    if own.persistent_workers and own.generator is None:  # which draws where workers are made:
        own.generator = torch.Generator().manual_seed(seeds.of(Domain.WORKERS))  # once in each run


def _number(index: Any) -> int:
    """Return what stands for an index, which samplers may give in other kinds than numbers."""
    try:
        return operator.index(index)
    except TypeError:
        return zlib.crc32(repr(index).encode())
