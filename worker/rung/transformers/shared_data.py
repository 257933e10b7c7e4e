"""The data that a trainer shares between several slots: refused where that would lose records."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from rung import core
from rung.torch.data.stream import refuse_apart, shards_itself
from rung.training.errors import NotResumable


def refuse_shared_already(trainer: Any, ranks: core.DistributedContext) -> None:
    """Refuse data sets that give each slot records of its own; the trainer shares batches.

    All ranks must call this.

    Raises:
        InvalidPlan: the slots have different data sets, or it is not known who shards a stream.
        NotResumable: a stream shards itself.
    """
    if ranks.size == 1:
        return
    for data, name, dataset in _datasets(trainer):
        if not isinstance(dataset, IterableDataset):
            refuse_apart(ranks, dataset, data)
        elif shards_itself(data, dataset, slots=ranks.size):
            raise NotResumable(
                f"Trainer({name}=…) is a stream that shards itself, and the trainer shares its "
                "batches again: give each slot the whole stream (without split_dataset_by_node), "
                "or set resources.slots_per_trial: 1"
            )


def _datasets(trainer: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the trainer's data sets, with their kind and their argument."""
    for data, name in (("training", "train_dataset"), ("validation", "eval_dataset")):
        found = getattr(trainer, name)
        several = found.values() if isinstance(found, Mapping) else [found]
        yield from ((data, name, each) for each in several if each is not None)
