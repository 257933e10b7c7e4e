"""Streams: data sets without an index, and who gives each slot its records.

On several slots a stream either is the same on all of them, and Rung shares its batches, or it
gives each slot records of its own: webdataset with `split_by_node`, Hugging Face's
`split_dataset_by_node`, Mosaic's StreamingDataset. Nothing in a stream tells which; shared again,
most of a stream that shards itself would be lost, and one that does not would be trained several
times. So the script says it, by `stream`, and is refused on several slots where it does not.
"""

import inspect
import zlib
from typing import Any, Final, TypeVar

import numpy as np
from torch.utils.data import Subset

from rung import core
from rung.torch.data.dataset_proxy import Forwarding
from rung.training.units import InvalidPlan

StreamT = TypeVar("StreamT")
_MARK: Final = "rung_shards_itself"


def stream(dataset: StreamT, *, shards_itself: bool) -> StreamT:
    """Say whether a stream gives each slot records of its own; needed on several slots.

        DataLoader(rt.stream(dataset, shards_itself=True), batch_size=64)

    Args:
        dataset: an `IterableDataset`, or a loader that is none of torch's. It is returned.
        shards_itself: True: the records of each slot are others, and together they are all. False:
            each slot reads all records in the same order, and Rung shares the batches.

    Raises:
        TypeError: the object takes no attributes.
    """
    try:
        object.__setattr__(dataset, _MARK, shards_itself)
    except AttributeError:
        raise TypeError(
            f"stream: a {type(dataset).__name__} takes no attributes; give the IterableDataset"
        ) from None
    return dataset


def shards_itself(data: str, *things: Any, slots: int) -> bool:
    """Return whether a stream shards itself.

    Args:
        data: `training` or `validation`, for the message.
        things: the stream, and what wraps it: any of them may be marked.
        slots: how many there are.

    Raises:
        InvalidPlan: the script does not say so.
    """
    for thing in things:
        inner = thing
        while True:
            mark = inspect.getattr_static(inner, _MARK, None)
            if isinstance(mark, bool):
                return mark
            if not isinstance(inner, Forwarding):
                break
            inner = inner.rung_inner
    raise InvalidPlan(
        f"the {data} data are a stream ({type(things[0]).__name__}), and on {slots} slots it"
        " cannot be known whether it gives each slot records of its own: create it with"
        " rung.torch.stream(dataset, shards_itself=True) if it does (webdataset's split_by_node,"
        " datasets' split_dataset_by_node, Mosaic's StreamingDataset); with shards_itself=False"
        " if each slot reads all records in the same order, which Rung then shares"
    )


def refuse_apart(ranks: core.DistributedContext, dataset: Any, data: str) -> None:
    """Refuse data sets with an index that are not the same on all ranks, as far as that shows.

    All ranks must call this.

    Args:
        ranks: those that share the data set.
        dataset: of this rank.
        data: `training` or `validation`, for the message.

    Raises:
        InvalidPlan: they have different lengths, or are different subsets.
    """
    said = ranks.allgather(_described(dataset))
    if any(each != said[0] for each in said):
        raise InvalidPlan(
            f"the {data} data sets of the slots differ: their lengths are"
            f" {', '.join(str(length) for length, *_ in said)}. Rung shares the batches of one"
            " data set between the slots, so one that is shared already would be cut twice: give"
            " each slot the whole data set, and make random splits with a fixed seed"
        )


def _described(dataset: Any) -> list[int | None]:
    """Return the length of a data set, and a digest of the indexes of each subset in it."""
    found: list[int | None] = [_length(dataset)]
    while isinstance(dataset, Subset):
        found.append(zlib.crc32(np.asarray(dataset.indices).tobytes()))
        dataset = dataset.dataset
    return found


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
