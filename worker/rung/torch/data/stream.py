"""Streams: data sets without an index, and who gives each slot its records.

On several slots a stream either is the same on all of them, and Rung shares its batches, or it
gives each slot records of its own: webdataset with `split_by_node`, Hugging Face's
`split_dataset_by_node`, Mosaic's StreamingDataset. Nothing in a stream tells which; shared again,
most of a stream that shards itself would be lost, and one that does not would be trained several
times. So the script says it, by `stream`, and is refused on several slots where it does not.
"""

import inspect
import zlib
from pathlib import PurePath
from typing import Any, Final, TypeVar

import numpy as np
from torch.utils.data import Subset

from rung import core
from rung.torch.data.dataset_proxy import Forwarding
from rung.training.rng import isolated
from rung.training.states.state_tree import Node, Writer
from rung.training.units import InvalidPlan

StreamT = TypeVar("StreamT")
_MARK: Final = "rung_shards_itself"
_LENGTH: Final = "length"
_RECORDS: Final = ("first records", "last records")


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

    All ranks must call this. It draws the first record and the last one twice.

    Args:
        ranks: those that share the data set.
        dataset: of this rank.
        data: `training` or `validation`, for the message.

    Raises:
        InvalidPlan: they have other lengths, are other subsets, or have other records.
    """
    said = ranks.allgather(_described(dataset))
    found = [name for name in said[0] if _differ([each[name] for each in said], name)]
    if found:
        raise InvalidPlan(
            f"the {data} data sets of the slots differ in their {' and '.join(found)} (their"
            f" lengths are {', '.join(str(each[_LENGTH]) for each in said)}). Rung shares the"
            " batches of one data set between the slots, so one that is shared already would be"
            " cut twice: give each slot the whole data set, and make random splits with a fixed"
            " seed"
        )


def _described(dataset: Any) -> dict[str, Any]:
    """Return the length, a digest of the indexes of each subset, and digests of records."""
    length = _length(dataset)
    found: dict[str, Any] = {_LENGTH: length}
    if length:
        ends = (0, length - 1)
        found |= {name: _record(dataset, end) for name, end in zip(_RECORDS, ends, strict=True)}
    subsets = []
    while isinstance(dataset, Subset):
        subsets.append(zlib.crc32(np.asarray(dataset.indices).tobytes()))
        dataset = dataset.dataset
    return found | {"subsets": subsets}


def _differ(said: list[Any], name: str) -> bool:
    """Return whether what the ranks say differs, where it is known of all."""
    known = name not in _RECORDS or None not in said
    return known and any(each != said[0] for each in said)


def _record(dataset: Any, index: int) -> str | None:
    """Return a digest of a record, None if it is another one each time, or cannot be told.

    Paths are left out: each node may have the data elsewhere.
    """
    found = set()
    for _ in range(2):
        writer = Writer(())
        try:
            with isolated(0):  # data may be augmented at random
                tree = writer.tree(_without_paths(dataset[index]), ())
        except Exception:  # noqa: BLE001 - of the script's data, perhaps with other indexes
            return None
        found.add(Node(tree, writer.arrays).digest())
    return found.pop() if len(found) == 1 else None


def _without_paths(record: Any) -> Any:
    """Return a record without texts and objects that are absolute paths."""
    match record:
        case str() | PurePath() if PurePath(record).is_absolute():
            return None
        case dict():
            return {name: _without_paths(each) for name, each in record.items()}
        case list() | tuple():
            return [_without_paths(each) for each in record]
        case _:
            return record


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
