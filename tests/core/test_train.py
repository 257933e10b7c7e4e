"""Metrics on their way to the wire: numbers pass, everything else is named."""

import decimal
import math
from typing import Any

import numpy as np
import pytest
import torch

from rung.core import ReportRefused
from rung.core._train import step_number, wire_values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (0.5, 0.5),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array([2.0]), 2.0),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([4.0], requires_grad=True), 4.0),
        (decimal.Decimal("1.5"), 1.5),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (torch.tensor(math.inf), "Infinity"),
        (10**400, "Infinity"),
        (-(10**400), "-Infinity"),
    ],
)
def test_every_kind_of_scalar_is_a_number(value: Any, expected: object) -> None:
    """Python, NumPy and torch scalars are taken; what is not finite becomes a word."""
    assert wire_values({"loss": value}) == {"loss": expected}


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("0.5", "must be a number, not str"),
        (np.str_("x"), "must be a number"),
        (None, "must be a number, not NoneType"),
        ([1.0], "must be a number, not list"),
        ({"a": 1.0}, "flatten"),
        (1j, "must be a number"),
        (np.array([1.0, 2.0]), "reduce it"),
        (torch.zeros(3), "reduce it"),
        (b"1", "must be a number"),
    ],
)
def test_what_is_no_number_is_refused_by_name(value: Any, hint: str) -> None:
    """The error names the metric and says what would be right."""
    with pytest.raises(ReportRefused, match=f"'accuracy'.*{hint}"):
        wire_values({"accuracy": value})


@pytest.mark.parametrize("name", [1, "", None])
def test_names_are_strings(name: Any) -> None:
    """A metric's name is a string that is not empty."""
    with pytest.raises(ReportRefused, match="names are strings"):
        wire_values({name: 1.0})


@pytest.mark.parametrize("metrics", [None, 0.3, [("loss", 0.3)]])
def test_metrics_have_names(metrics: Any) -> None:
    """A number alone is refused with how to write it."""
    with pytest.raises(ReportRefused, match=r"such as \{'loss': 0\.1\}, not "):
        wire_values(metrics)


def test_steps_are_whole_numbers() -> None:
    """A step may be a NumPy integer; fractions, strings, negative and huge ones are refused."""
    assert step_number(np.int32(4)) == 4
    assert step_number(2**63 - 1) == 2**63 - 1
    for wrong in (1.5, "1", None, -1, 2**63):
        with pytest.raises(ReportRefused, match="steps_completed"):
            step_number(wrong)
