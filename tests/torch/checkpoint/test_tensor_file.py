"""Files of tensors: whole, in place, and never looked at when they are gone."""

import os
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.serialization import config

from rung.storage.durable_file import ALIGNMENT, DurableFile, durable_file
from rung.torch.checkpoint import tensor_file
from rung.torch.checkpoint.snapshot import Snapshot
from rung.torch.checkpoint.tensor_file import NotPlain, plain

LARGE = 1 << 20


def saved(value: Any, path: Path) -> Path:
    """Write a value to a file."""
    with path.open("wb") as file:
        tensor_file.save(value, file)
    return path


def begins(path: Path, tensor: torch.Tensor) -> int:
    """Return where in a file the bytes of a tensor begin."""
    return path.read_bytes().index(tensor.numpy().tobytes())


def test_large_tensors_begin_at_a_boundary(tmp_path: Path) -> None:
    """Each of them, wherever the one before ended; `torch.load` reads them as ever."""
    large = [torch.randn(LARGE + number) for number in range(3)]
    value = {"large": large, "small": 1}
    path = saved(value, tmp_path / "file")
    assert [begins(path, tensor) % ALIGNMENT for tensor in large] == [0, 0, 0]
    for found in (torch.load(path, weights_only=True), tensor_file.load(path)):
        assert all(map(torch.equal, found["large"], large))
        assert found["small"] == 1


def test_what_torch_writes_itself_is_read(tmp_path: Path) -> None:
    """Files of older versions know no boundaries; they are as good."""
    value = {"a": torch.randn(LARGE), "b": torch.arange(3)}
    torch.save(value, tmp_path / "file")
    found = tensor_file.load(tmp_path / "file")
    assert all(torch.equal(found[name], tensor) for name, tensor in value.items())


def test_small_tensors_take_no_more_room(tmp_path: Path) -> None:
    """Many small ones are not padded to boundaries, and others' files are as they were."""
    value = [torch.randn(10) for _ in range(1000)]
    path = saved(value, tmp_path / "file")
    torch.save(value, tmp_path / "other")
    assert path.stat().st_size < 1.02 * (tmp_path / "other").stat().st_size
    assert config.save.storage_alignment == 64
    assert torch.serialization.get_crc32_options()


def test_a_snapshot_is_written_from_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of large tensors go through no buffer."""
    taken, real = [], DurableFile._take_in_place

    def counting(file: DurableFile, view: memoryview) -> memoryview:
        taken.append(len(view))
        return real(file, view)

    monkeypatch.setattr(DurableFile, "_take_in_place", counting)
    snapshot = Snapshot()
    value = snapshot.take({str(number): torch.randn(LARGE) for number in range(4)})
    snapshot.settle()
    with durable_file(tmp_path / "file") as file:
        tensor_file.save(value, file)
    assert taken == [4 * LARGE] * 4
    found = tensor_file.load(tmp_path / "file")
    assert all(torch.equal(found[name], tensor) for name, tensor in value.items())


def test_what_is_owned_outlives_the_file(tmp_path: Path) -> None:
    """It is a copy, in which what shared memory shares it."""
    whole = torch.randn(LARGE)
    path = saved([whole, whole[10:20], {"n": 1}], tmp_path / "file")
    first, view, rest = tensor_file.owned(tensor_file.load(path))
    os.truncate(path, 0)
    assert torch.equal(first, whole)
    assert view.data_ptr() == first.data_ptr() + 40
    assert rest == {"n": 1}


class OwnWay(torch.optim.SGD):
    """Loads as it likes."""

    def load_state_dict(self, state_dict: Any) -> None:
        """Keep it, for example."""
        super().load_state_dict(state_dict)


def on(device: str, kind: Any = torch.optim.SGD) -> Any:
    """Return an optimizer of a parameter on a device."""
    return kind([torch.nn.Parameter(torch.zeros(3, device=device))], 0.1)


def test_only_an_optimizer_elsewhere_takes_a_state_in_whole() -> None:
    """On a CPU it keeps the tensors that it is given, and with a way of its own who knows."""
    assert tensor_file.is_taken_in_whole(on("meta"))
    assert not tensor_file.is_taken_in_whole(on("cpu"))
    assert not tensor_file.is_taken_in_whole(on("meta", OwnWay))


def test_an_optimizer_elsewhere_keeps_nothing_of_the_file(tmp_path: Path) -> None:
    """What it keeps in main memory of a state that it loaded is its own."""
    optimizer = on("meta", torch.optim.Adam)
    state = {
        "step": torch.tensor(7.0),
        "exp_avg": torch.ones(3),
        "exp_avg_sq": torch.ones(3),
    }
    groups = optimizer.state_dict()["param_groups"]
    groups[0] |= {"lr": torch.tensor(0.5), "own": {"seen": [(torch.tensor([5]),)]}}
    path = saved({"state": {0: state}, "param_groups": groups}, tmp_path / "file")
    optimizer.load_state_dict(tensor_file.load(path))
    tensor_file.own_the_rest(optimizer)
    os.truncate(path, 0)
    [held] = optimizer.state.values()
    assert held["step"].item() == 7.0
    assert held["exp_avg"].device.type == "meta"
    assert optimizer.param_groups[0]["lr"].item() == 0.5
    assert optimizer.param_groups[0]["own"]["seen"][0][0].item() == 5


def test_plain_values_come_back_without_unpickling(tmp_path: Path) -> None:
    """Whatever passes is loaded by torch.load(weights_only=True), and is the same."""
    value = {
        "scalars": [1, 2.5, "x", None, True, b"y", (1, "z")],
        3: OrderedDict(a=1),
        "milestones": Counter({30: 1, 60: 2}),
        "numpy": np.float64(0.5),
        "infinite": float("inf"),
        "tensor": torch.arange(3),
    }
    torch.save(plain(value, "state"), tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    assert torch.equal(loaded.pop("tensor"), torch.arange(3))
    value.pop("tensor")
    assert loaded == value


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, object()]}, r"state\.a\[1\]"),
        ({"a": {"b": np.zeros(2)}}, r"state\.a\.b.*from_numpy"),
        ({"a": {1, 2}}, r"state\.a.*set"),
        ({"a": lambda: 1}, r"state\.a.*function"),
        ({frozenset(): 1}, "keys are text"),
    ],
)
def test_anything_else_is_named_with_its_place(value: Any, place: str) -> None:
    """The error says where it is and what it is."""
    with pytest.raises(NotPlain, match=place):
        plain(value, "state")


@pytest.mark.parametrize(
    "tensor", [torch.eye(3).to_sparse(), torch.ones(2, dtype=torch.complex64).conj()]
)
def test_an_unusual_tensor_comes_back(tmp_path: Path, tensor: torch.Tensor) -> None:
    """Its kind and its values are those that were stored, also by way of a snapshot."""
    tensor_file.demand_storable({"adjacency": tensor}, "model")
    snapshot = Snapshot()
    value = snapshot.take({"adjacency": tensor, "weight": torch.randn(LARGE)})
    snapshot.settle()
    found = tensor_file.owned(tensor_file.load(saved(value, tmp_path / "file")))["adjacency"]
    assert found.layout is tensor.layout
    assert torch.equal(found.to_dense(), tensor.to_dense())


def test_a_tensor_that_torch_does_not_read_is_named() -> None:
    """A nested tensor is written, and nobody could read it without unpickling code."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(NotPlain, match=r"trial\.rows\[0\]: .* \(nested\)"):
        tensor_file.demand_storable({"rows": [nested]}, "trial")
