"""Metrics as scripts give them, and as they go over the wire."""

import math
import operator
from collections.abc import Mapping
from typing import Any, SupportsFloat

from rung.core.errors import ReportRefused
from rung.events.trial import MetricValue


def wire_values(metrics: Mapping[str, Any]) -> dict[str, MetricValue]:
    """Return the metrics as JSON can hold them; numbers that are not finite become words.

    Python, NumPy and torch scalars are numbers, a tensor with a single element too.

    Raises:
        ReportRefused: a name is no string, or a value is no number; the message names it.
    """
    values: dict[str, MetricValue] = {}
    for name, value in metrics.items():
        if type(name) is not str or not name:
            raise ReportRefused(f"metric {name!r}: names are strings, such as 'loss'")
        number = value if type(value) is float else _number(name, value)
        values[name] = number if math.isfinite(number) else _word(number)
    return values


def plain_number(value: MetricValue) -> float:
    """Return what a wire value stands for; `float` understands the three words."""
    return float(value)


def step_number(steps_completed: Any) -> int:
    """Return a report's step.

    Raises:
        ReportRefused: it is no whole number, or negative.
    """
    try:
        step = operator.index(steps_completed)
    except TypeError as error:
        raise ReportRefused(
            f"steps_completed={steps_completed!r}: must be a whole number, "
            f"not {type(steps_completed).__name__}"
        ) from error
    if step < 0:
        raise ReportRefused(f"steps_completed={step}: must not be negative")
    return step


def _number(name: str, value: Any) -> float:
    scalar = value
    if not isinstance(value, int | float) and hasattr(value, "item"):
        try:
            scalar = value.item()
        except (ValueError, RuntimeError) as error:
            raise ReportRefused(
                f"metric {name!r}: has {getattr(value, 'shape', 'several')} elements; "
                "reduce it to one number, such as its mean"
            ) from error
    if isinstance(scalar, str | bytes) or not isinstance(scalar, SupportsFloat):
        hint = " (flatten it: one name for each number)" if isinstance(scalar, Mapping) else ""
        raise ReportRefused(
            f"metric {name!r}: must be a number, not {type(value).__name__} "
            f"({str(value)[:40]!r}){hint}"
        )
    try:
        return float(scalar)
    except OverflowError:
        return math.inf if scalar > 0 else -math.inf  # type: ignore[operator]  # an int too large


def _word(number: float) -> MetricValue:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
