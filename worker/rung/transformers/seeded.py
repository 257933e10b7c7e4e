"""Training data whose draws do not depend on when, where, or in what order they are fetched.

The trainer reads ahead, and a resumed epoch does not read what it skips. So each sample is
fetched, and each batch collated (masking draws there), with generators seeded for it: from the
trial's seed, the epoch and the sample's index; afterwards they are as they were before.
"""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from rung.torch.rng import derive, isolated

_SAMPLE = 4
_BATCH = 5


class SeededData(Dataset[Any]):
    """A data set with an index, fetched from with generators seeded for each sample."""

    def __init__(self, inner: Any, seed: int) -> None:
        self._inner = inner
        self._seed = seed
        self.epoch = 0
        self.last = 0
        """The index fetched last, in this process."""

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Any:
        self.last = int(index)
        with isolated(derive(self._seed, _SAMPLE, self.epoch, self.last)):
            return self._inner[index]


class SeededCollator:
    """Makes batches with generators seeded by the last sample of each."""

    def __init__(self, inner: Any, data: SeededData, seed: int) -> None:
        self._inner = inner
        self._data = data
        self._seed = seed

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch."""
        with isolated(derive(self._seed, _BATCH, self._data.epoch, self._data.last)):
            return self._inner(samples)


def seed_data(trainer: Any, seed: int) -> SeededData | None:
    """Have a trainer's training data, and only these, fetched with seeded generators.

    Returns:
        The data set, to be told the epoch; None where it is none with an index.
    """
    inner = trainer.train_dataset
    if inner is None or not hasattr(inner, "__len__") or not hasattr(inner, "__getitem__"):
        return None
    data = inner if isinstance(inner, SeededData) else SeededData(inner, seed)
    original = type(trainer).get_train_dataloader

    def get_train_dataloader() -> Any:
        collator, dataset = trainer.data_collator, trainer.train_dataset
        if hasattr(inner, "column_names"):  # the trainer drops columns of such by their names
            collator = trainer._get_collator_with_removed_columns(  # noqa: SLF001 - as it does itself
                collator, description="training"
            )
        trainer.train_dataset = data
        trainer.data_collator, kept = SeededCollator(collator, data, seed), trainer.data_collator
        try:
            return original(trainer)
        finally:
            trainer.train_dataset, trainer.data_collator = dataset, kept

    trainer.get_train_dataloader = get_train_dataloader
    return data
