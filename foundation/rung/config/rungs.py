"""Rungs: the lengths at which a search compares its trials.

The searcher plans its brackets with these numbers, and a run that goes past a rung on its way to
the full length validates there, so both read them here. The numbers are exact: a floating-point
logarithm finds log_3 243 a little below 5 and one rung less than there are.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

DIVISOR: Final = 4.0
"""One trial in this many goes on from each rung of ASHA, where the file does not say."""
RUNGS: Final = 5
"""How many rungs the largest bracket has at most, where the file does not say."""


def rung_lengths(rungs: int, divisor: float, max_time: int) -> list[int]:
    """Return max_time / divisor**k for k = rungs-1 … 0, rounded down, at least 1."""
    step = Fraction(divisor)
    return [max(max_time // step**k, 1) for k in reversed(range(rungs))]


def rungs_within(units: int, divisor: float, most: int) -> int:
    """Return floor(log_divisor units) + 1, exactly, and at most `most`."""
    rungs, power = 1, Fraction(divisor)
    while rungs < most and power <= units:
        rungs, power = rungs + 1, power * Fraction(divisor)
    return rungs


def adaptive_rungs(max_time: int, max_trials: int, divisor: float, max_rungs: int | None) -> int:
    """Return how many rungs the largest bracket of `adaptive_asha` has by itself."""
    return rungs_within(max_trials, divisor, rungs_within(max_time, divisor, max_rungs or RUNGS))


def rungs_passed(searcher: Mapping[str, Any]) -> list[int]:
    """Return the rungs that a run goes past on its way, or ends at, shortest first.

    Only where ASHA stops trials are there any: in other searches each run ends at its rung. Those
    of the largest bracket are those of all.

    Args:
        searcher: the section of that name; it may lack what the method cannot do without.
    """
    name, max_time = searcher.get("name"), searcher.get("max_time")
    divisor = searcher.get("divisor") or DIVISOR
    if searcher.get("stop_once") is False or not max_time:
        return []
    match name:
        case "async_halving" | "asha":
            rungs = searcher.get("num_rungs") or 0
        case "adaptive_asha" if searcher.get("bracket_rungs"):
            rungs = max(searcher["bracket_rungs"])
        case "adaptive_asha":
            trials = searcher.get("max_trials") or 1
            rungs = adaptive_rungs(max_time, trials, divisor, searcher.get("max_rungs"))
        case _:
            rungs = 0
    return sorted(set(rung_lengths(rungs, divisor, max_time)))
