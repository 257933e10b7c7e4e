"""Rungs: the lengths at which a search compares its trials, and the results there.

Lengths are computed exactly: a floating-point logarithm finds log_3 243 a little below 5, which
would make one rung less.
"""

from bisect import bisect_left, insort
from fractions import Fraction
from typing import Final

from msgspec import Struct, field

RUNGS_MAX: Final = 100
"""Rungs of a bracket; the cost of their exact lengths grows with their number."""

Entry = tuple[float, int]
"""Cost and index of a trial: entries sort by cost, and ties by the trial's index."""


class Rung(Struct):
    """The results of one rung, best first."""

    entries: list[Entry] = field(default_factory=list[Entry])

    def add(self, cost: float, index: int) -> int:
        """Add a trial's result and return its place, counted from 0."""
        insort(self.entries, (cost, index))
        return self.place((cost, index))

    def place(self, entry: Entry) -> int:
        """Return the place of an entry, counted from 0."""
        return bisect_left(self.entries, entry)

    def remove(self, index: int) -> None:
        """Remove a trial's result, if it has one."""
        self.entries = [entry for entry in self.entries if entry[1] != index]

    def evidence(self, place: int, length: int, keep: int) -> str:
        """Return a sentence on a trial's place among the results at this length so far."""
        return f"place {place + 1} of {len(self.entries)} at length {length}; {keep} train on"


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
