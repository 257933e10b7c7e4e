"""Tensors are found wherever batches have them."""

from typing import Any, NamedTuple

import torch

from rung.torch.nested import mapped


class Pair(NamedTuple):
    """A batch of a collate function's own."""

    inputs: Any
    labels: Any


def test_each_tensor_is_changed_where_it_is() -> None:
    """Containers keep their kinds, and what is no tensor stays."""
    one = torch.tensor(1)
    batch = {"a": [one, "text"], "b": (one, None), "c": Pair(one, 5)}
    found = mapped(batch, lambda tensor: tensor + 1)
    assert found == {"a": [2, "text"], "b": (2, None), "c": Pair(2, 5)}
    assert type(found["c"]) is Pair
