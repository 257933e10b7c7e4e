"""Tensors are found wherever batches have them."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from rung.torch.data.training_data import records_of
from rung.torch.pytree import mapped, moved


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


@dataclass(frozen=True)
class Sample:
    """A batch as a dataclass."""

    name: str
    inputs: torch.Tensor


class Graph:
    """A batch that moves itself, in place, as some do."""

    def __init__(self) -> None:
        self.edges = torch.zeros(2)

    def to(self, device: torch.device) -> None:
        """Move."""
        self.edges = self.edges.to(device)


META = torch.device("meta")


@pytest.mark.parametrize("kind", [dict, UserDict, OrderedDict])
def test_mappings_keep_their_kinds(kind: Any) -> None:
    """The batches of tokenizers are no dicts, and their tensors are found all the same."""
    batch = kind({"text": "a", "ids": torch.zeros(3, 2)})
    there = moved(batch, META)
    assert type(there) is kind
    assert there["ids"].device == META
    assert batch["ids"].device.type == "cpu"
    assert records_of(batch) == 3


def test_a_mapping_that_cannot_be_written_becomes_a_dict() -> None:
    """Its tensors are on the device all the same."""
    assert moved(MappingProxyType({"a": torch.zeros(1)}), META)["a"].device == META


def test_what_has_a_to_of_its_own_moves_itself() -> None:
    """Packed sequences and graphs, also deep in a batch; what cannot is left alone."""
    packed, graph, one = moved(
        [pack_sequence([torch.zeros(3), torch.zeros(2)]), Graph(), Graph], META
    )
    assert packed.data.device == META
    assert graph.edges.device == META
    assert one is Graph
    assert records_of(pack_sequence([torch.zeros(3), torch.zeros(2)])) == 2


def test_a_dataclass_is_gone_through() -> None:
    """A frozen one, too; the original stays as it is."""
    sample = Sample("a", torch.zeros(4))
    there = moved((sample,), META)[0]
    assert (there.name, there.inputs.device) == ("a", META)
    assert sample.inputs.device.type == "cpu"
    assert records_of(sample) == 4
