"""Sharded files: each rank writes its parts of tensors, and reads those that it is to hold.

    sharded/__0_0.distcp   tensors and parts of rank 0, one `torch.save` after another
    sharded/__0_1.distcp   its parameters that are not trained, if large; stored once
    sharded/.metadata      the index of all files; written by the chief after all other files

This is the format of `torch.distributed.checkpoint`, whose planners assign tensors to ranks, so
its tools can read the folder. It contains only tensors. `training.pt` contains their shapes, as
tensors without data (`meta`).

Differences from torch's own writer and reader: a file is written directly, past the page cache
(`rung.storage.durable_file`), so large tensors are aligned to disk blocks; and of `.metadata`,
which is pickled, only the classes of its format are unpickled.
"""

import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from rung.core import DistributedContext
from rung.storage import ObjectDamaged
from rung.storage.checkpoint.writer import Sink
from rung.storage.durable_file import ALIGNMENT
from rung.torch.checkpoint import tensor_file
from rung.torch.checkpoint.sharded_tensors import Piece, is_shard
from rung.torch.checkpoint.snapshot import Snapshot
from rung.torch.checkpoint.tensor_file import NotPlain

FOLDER: Final = "sharded"
METADATA: Final = f"{FOLDER}/.metadata"
VERSION: Final = getattr(filesystem, "CURRENT_DCP_VERSION", "1.0.0")  # older torch names none
Path_ = tuple[str | int, ...]


class Found:
    """The tensors of a state that go into the ranks' files, by name."""

    def __init__(self, *, chief: bool) -> None:
        self._chief = chief
        self.tensors: dict[str, Any] = {}
        self.paths: dict[str, Path_] = {}
        """The path of each in the whole state, for other readers of the format."""

    def without(self, value: Any, path: Path_, *, wholes: bool = False) -> Any:
        """Return a state with `meta` tensors in place of its sharded tensors.

        Args:
            value: the state.
            path: its path in the whole state.
            wholes: whether tensors that are not sharded are included; the chief's are stored.

        Raises:
            NotPlain: two tensors would have the same name.
        """
        if isinstance(value, torch.Tensor):
            if not (wholes or is_shard(value)):
                return value
            name = _name_of(path)
            if name in self.paths:
                raise NotPlain(f"{name}: two tensors of the state have this name; rename one")
            self.paths[name] = path
            if self._chief or is_shard(value):
                self.tensors[name] = value
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        return _rebuilt(value, path, lambda item, at: self.without(item, at, wholes=wholes))


class Share:
    """The tensors that this rank writes; all ranks must create one at the same time.

    Args:
        found: the tensors of this rank.
        frozen: the names of those that do not change.
        ranks: those that write.
    """

    def __init__(self, found: Found, frozen: frozenset[str], ranks: DistributedContext) -> None:
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(found.tensors, is_coordinator=ranks.is_chief)
        plans: list[SavePlan] | None = ranks.gather(planner.create_local_plan())
        self._metadata: Metadata | None = None
        if plans is not None:
            plans, self._metadata = planner.create_global_plan(plans)
            self._metadata.planner_data = found.paths
        own: SavePlan = ranks.broadcast(plans)[ranks.rank]
        self._tensors = {
            item.index.fqn: _local(found.tensors[item.index.fqn]) for item in own.items
        }
        changing = [item for item in own.items if item.index.fqn not in frozen]
        constant = [item for item in own.items if item.index.fqn in frozen]
        names = [f"__{ranks.rank}_{number}.distcp" for number in (0, 1)]
        self._items = dict(zip(names, (changing, constant), strict=True))
        self._written: dict[str, list[WriteResult]] = {}

    def copy(self, snapshot: Snapshot) -> None:
        """Copy the tensors; training may go on when the snapshot is settled."""
        self._tensors = snapshot.take(self._tensors)

    @property
    def files(self) -> list[tuple[str, bool]]:
        """The names of the files, and whether each may be unchanged."""
        return [
            (f"{FOLDER}/{name}", number == 1)
            for number, name in enumerate(self._items)
            if self._items[name]
        ]

    def save(self, name: str, sink: Sink) -> None:
        """Write a file."""
        file = name.removeprefix(f"{FOLDER}/")
        counted = _Counted(sink)
        self._written[file] = [
            _saved(item, self._tensors[item.index.fqn], file, counted)
            for item in self._items[file]
        ]

    @property
    def written(self) -> list[WriteResult]:
        """The index of the files that were written."""
        return [result for results in self._written.values() for result in results]

    def save_metadata(self, written: Sequence[Sequence[WriteResult]], sink: Sink) -> None:
        """Write the index of the files of all ranks, on the chief."""
        assert self._metadata is not None
        self._metadata.storage_data = {
            result.index: result.storage_data for results in written for result in results
        }
        self._metadata.version = VERSION
        pickle.dump(self._metadata, cast("IO[bytes]", sink))


class Stored:
    """The sharded tensors of a checkpoint.

    Args:
        files: of the checkpoint.

    Raises:
        ObjectDamaged: the index is not valid.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._reader = FileSystemReader(files[METADATA].parent)
        self._metadata = read_metadata(files[METADATA])
        for info in self._metadata.storage_data.values():
            if f"{FOLDER}/{info.relative_path}" not in files:
                raise ObjectDamaged(
                    f"{METADATA}: {info.relative_path} is not a file of the checkpoint"
                )
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=False)

    def pieces(self, value: Any, path: Path_) -> Any:
        """Return a state with `Piece`s for `meta` tensors, read once their target is known."""
        if isinstance(value, torch.Tensor):
            return Piece(_name_of(path), value, self.read) if value.is_meta else value
        return _rebuilt(value, path, self.pieces)

    def read(self, name: str, target: torch.Tensor) -> None:
        """Fill a whole tensor, or this rank's part of it."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner({name: target}, self._metadata)
        self._reader.read_data(planner.finish_plan(planner.create_local_plan()), planner)


def read_metadata(path: Path) -> Metadata:
    """Read the index.

    Raises:
        ObjectDamaged: the file is not valid.
    """
    try:
        with path.open("rb") as opened:
            found = _MetadataReader(opened).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError) as error:
        raise ObjectDamaged(f"{METADATA}: is not what torch writes: {error}") from error
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise ObjectDamaged(f"{METADATA}: is not what torch writes")
    for name, described in found.state_dict_metadata.items():
        if not isinstance(
            described, TensorStorageMetadata
        ):  # else it is unpickled when it is read
            raise ObjectDamaged(f"{METADATA}: {name} is not a tensor")
    return found


class _MetadataReader(pickle.Unpickler):
    """Unpickles only the classes of torch's metadata."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of the format")


_ALLOWED: Final = frozenset(
    (kind.__module__, kind.__qualname__)
    for kind in (
        metadata.ChunkStorageMetadata,
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.StorageMeta,
        metadata.TensorProperties,
        metadata.TensorStorageMetadata,
        metadata._MEM_FORMAT_ENCODING,  # noqa: SLF001 - in every file of the format
        filesystem._StorageInfo,  # noqa: SLF001 - as above
        torch.Size,
    )
) | {("torch.serialization", "_get_layout")}


class _Counted:
    """A sink that counts the bytes written to it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.position = 0

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        count = self._sink.write(data)
        self.position += count
        return count

    def flush(self) -> None:
        """Do nothing: the owner of the sink flushes it."""


def _saved(item: WriteItem, tensor: torch.Tensor, file: str, sink: _Counted) -> WriteResult:
    """Write a tensor in the format of DCP, aligned so that it is written without a copy."""
    tensor = tensor.detach().cpu()
    if tensor.untyped_storage().nbytes() != tensor.nbytes:
        tensor = tensor.clone()  # otherwise the whole storage is written, with a shard's padding
    if tensor_file.has_boundaries(tensor):
        sink.write(bytes(-sink.position % ALIGNMENT))
    begin = sink.position
    tensor_file.save(tensor, sink)
    size = sink.position - begin
    place = filesystem._StorageInfo(file, begin, size)  # noqa: SLF001 - what its reader looks for
    return WriteResult(index=item.index, size_in_bytes=size, storage_data=place)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if not is_shard(tensor):
        return tensor
    shard: Any = tensor.detach()
    local: torch.Tensor = shard.to_local()
    return local


def _name_of(path: Path_) -> str:
    return ".".join(str(part) for part in path)


def _rebuilt(value: Any, path: Path_, change: Any) -> Any:
    """Return a container with a function applied to each item and its path."""
    if isinstance(value, dict):
        items = ((key, change(item, (*path, str(key)))) for key, item in value.items())
        rebuilt = type(value)(items)
        if isinstance(value, OrderedDict):
            vars(rebuilt).update(vars(value))  # a model's has its modules' versions there
        return rebuilt
    if isinstance(value, list | tuple):
        return type(value)(change(item, (*path, index)) for index, item in enumerate(value))
    return value
