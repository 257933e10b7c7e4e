"""Rungs: who got to a length at which trials are compared, and with which result."""

from bisect import bisect_left, insort

from msgspec import Struct, field

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
        """Return a sentence on a trial's place among those that reached this length so far."""
        return f"place {place + 1} of {len(self.entries)} at length {length}; {keep} train on"
