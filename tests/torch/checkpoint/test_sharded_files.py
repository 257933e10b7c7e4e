"""Sharded tensors in files: torch's format, of which nothing but tensors is ever made."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from rung.core import DistributedContext
from rung.core.ipc.environment import Place
from rung.storage import ObjectDamaged
from rung.torch.checkpoint.sharded_files import METADATA, Found, Share, Stored, read_metadata
from rung.torch.checkpoint.sharded_tensors import Piece
from rung.torch.checkpoint.snapshot import Snapshot
from rung.torch.checkpoint.tensor_file import NotPlain

STATE: dict[str, Any] = {
    "large": torch.arange(300_000.0),
    "small": torch.tensor(3, dtype=torch.int64),
    "part": torch.arange(10.0)[2:5],
    "half": [torch.ones(2, 3, dtype=torch.bfloat16), "no tensor"],
    "count": 5,
}


def written(folder: Path, state: Any = STATE, frozen: frozenset[str] = frozenset()) -> Any:
    """Write a state as one process does it; return what is left of it."""
    found = Found(chief=True)
    rest = found.without(state, ("model",), wholes=True)
    share = Share(found, frozen, DistributedContext(Place()))
    snapshot = Snapshot()
    share.copy(snapshot)
    snapshot.settle()
    (folder / "sharded").mkdir(parents=True)
    for name, _ in share.files:
        with (folder / name).open("wb") as opened:
            share.save(name, opened)
    with (folder / METADATA).open("wb") as opened:
        share.save_metadata([share.written], opened)
    return rest


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by name."""
    return {it.relative_to(folder).as_posix(): it for it in folder.rglob("*") if it.is_file()}


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    """Bit for bit, with its shape left where it was until it is read."""
    rest = written(tmp_path)
    assert (rest["count"], rest["half"][1], rest["large"].is_meta) == (5, "no tensor", True)
    pieces = Stored(files_of(tmp_path)).pieces(rest, ("model",))
    assert isinstance(pieces["large"], Piece)
    assert pieces["large"].shape == STATE["large"].shape
    for name in ("large", "small", "part"):
        assert pieces[name].whole().equal(STATE[name])
    assert pieces["half"][0].whole().equal(STATE["half"][0])


def test_torchs_tools_open_it(tmp_path: Path) -> None:
    """With what is nested as it was."""
    written(tmp_path, frozen=frozenset({"model.large"}))
    assert {"sharded/__0_0.distcp", "sharded/__0_1.distcp"} < files_of(tmp_path).keys()
    dcp_to_torch_save(tmp_path / "sharded", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)["model"]
    for name in ("large", "small", "part"):
        assert whole[name].equal(STATE[name])
    assert whole["half"][0].equal(STATE["half"][0])


def test_two_tensors_of_one_name_are_refused() -> None:
    """Rather than that one is taken for the other."""
    found = Found(chief=True)
    with pytest.raises(NotPlain, match=r"kept\.a\.b: two tensors"):
        found.without({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, ("kept",), wholes=True)


class Harmful:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        """Say how."""
        return os.system, ("touch harm",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Harmful()), "posix.system is not part of the format"),
        (pickle.dumps(Metadata({}, storage_data={"x": Harmful()})), "posix.system is not"),
        (
            pickle.dumps(torch.nn.Linear),
            "torch.nn.modules.linear.Linear is not part of the format",
        ),
        (b"", "is not what torch writes"),
        (pickle.dumps({}), "is not what torch writes"),
        (pickle.dumps(Metadata({}, storage_data=None)), "is not what torch writes"),
        (pickle.dumps(Metadata({"x": BytesStorageMetadata()}, storage_data={})), "Bytes"),
    ],
)
def test_nothing_else_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    """Whoever puts code where the index of the tensors is has a damaged checkpoint."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(ObjectDamaged, match=message):
        read_metadata(tmp_path / ".metadata")
    assert not (tmp_path / "harm").exists()


def test_a_file_elsewhere_is_not_read(tmp_path: Path) -> None:
    """What the index names is a file of the checkpoint, and so has been compared."""
    written(tmp_path)
    metadata = read_metadata(tmp_path / METADATA)
    place = filesystem._StorageInfo("../../secret", 0, 1)
    metadata.storage_data[MetadataIndex("x")] = place
    (tmp_path / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(ObjectDamaged, match="secret is not a file of the checkpoint"):
        Stored(files_of(tmp_path))
