"""Shares: each rank's part of training batches and of a validation set.

A training batch is split as evenly as possible. Whole validation batches are assigned to the ranks
in turn, so that each has the same metrics as on one slot. Where there are fewer batches than ranks
each batch is split; where even that leaves a rank without a record, every rank evaluates the whole
set, which is very small.
"""

from typing import Any, Final, NamedTuple


class Part(NamedTuple):
    """A rank's part of every batch: as even as possible, larger parts first."""

    rank: int
    size: int

    def of(self, length: int) -> slice:
        """Return the part of a batch of `length` records."""
        base, extra = divmod(length, self.size)
        start = self.rank * base + min(self.rank, extra)
        return slice(start, start + base + (self.rank < extra))

    def count(self, length: int) -> int:
        """Return the number of records in the rank's part of a batch."""
        part = self.of(length)
        return int(part.stop - part.start)

    def given(self, length: int) -> slice:
        """Return the records to compute with: the rank's part, or one record if it is empty."""
        return self.of(length) if self.count(length) else slice(0, 1)


WHOLE: Final = Part(0, 1)


def dealt(entries: list[list[Any]], part: Part) -> list[list[Any]]:
    """Return the batches of a rank; each rank has at least one.

    Args:
        entries: the records of each batch of all ranks.
        part: which rank of how many.
    """
    if len(entries) >= part.size:
        return entries[part.rank :: part.size]
    if any(len(entry) >= part.size for entry in entries):
        return [own for entry in entries if (own := entry[part.of(len(entry))])]
    return entries


def replicated(entries: list[list[Any]], part: Part) -> bool:
    """Return whether every rank evaluates all batches, because they are so few and small."""
    return len(entries) < part.size and all(len(entry) < part.size for entry in entries)
