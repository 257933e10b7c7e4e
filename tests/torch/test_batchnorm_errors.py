"""Batches too small for batch normalisation are named, with what helps."""

import pytest
import torch
from torch import nn

from rung.torch import InvalidPlan
from rung.torch.batchnorm_errors import too_few_named


def test_a_part_of_one_record_is_named() -> None:
    """Torch speaks of values per channel; the user has a last batch that is too small."""
    with (
        pytest.raises(InvalidPlan, match=r"a batch of 3 .* 2 slots .* drop_last=True"),
        too_few_named(3, 2),
    ):
        nn.BatchNorm1d(4)(torch.zeros(1, 4))


def test_other_errors_stay_what_they_are() -> None:
    """On one slot torch's words say all; and what is of something else is not touched."""
    with pytest.raises(ValueError, match="more than 1 value"), too_few_named(1, 1):
        nn.BatchNorm1d(4)(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="mine"), too_few_named(1, 2):
        raise ValueError("mine")
