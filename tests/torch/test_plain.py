"""What a checkpoint may hold."""

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rung.torch.plain import NotPlain, plain


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
