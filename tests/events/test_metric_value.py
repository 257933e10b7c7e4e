"""What a metric's value counts for where values are compared."""

import math

import pytest

from rung.events.trial import MetricValue, cost_of


@pytest.mark.parametrize(
    ("value", "smaller_is_better", "cost"),
    [
        (0.5, True, 0.5),
        (0.5, False, -0.5),
        (3, True, 3.0),
        (None, True, None),
        (None, False, None),
        ("NaN", True, None),
        ("-Infinity", True, None),
        ("Infinity", False, None),
        (math.nan, False, None),
        (math.inf, True, None),
    ],
)
def test_costs(value: MetricValue | None, smaller_is_better: bool, cost: float | None) -> None:  # noqa: FBT001 - a table's column
    """What is no finite number has no cost, whichever way is better."""
    assert cost_of(value, smaller_is_better=smaller_is_better) == cost
