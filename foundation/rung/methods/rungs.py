"""Rungs: the lengths at which a search compares its trials, and the results there.

Lengths are computed exactly: a floating-point logarithm finds log_3 243 a little below 5, which
would make one rung less.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from operator import itemgetter
from typing import Final

from msgspec import Struct, field

RUNGS_MAX: Final = 100
"""Rungs of a bracket; the cost of their exact lengths grows with their number."""

Entry = tuple[float, int]
"""Cost and index of a trial: entries sort by cost, and ties by the trial's index."""


_best: Final[Callable[[list[Entry]], Entry]] = itemgetter(0)

_CHUNK: Final = 2_048
"""Entries of a chunk at most; beyond that it is halved."""
_BLOCK: Final = 64
"""Chunks whose sizes are added up as one."""


class Rung(Struct):
    """The results of one rung, best first, in chunks of a sorted list.

    A single sorted list moves half of its entries at each insertion. In chunks an insertion moves
    those of one chunk, and a place is a sum of sizes, of which there is one for each `_BLOCK`
    chunks; only a chunk that is halved or removed has all sizes behind it measured again.

    Attributes:
        chunks: the entries in their order; none is empty.
        sizes: of each chunk.
        sums: of each `_BLOCK` sizes.
        count: of all entries.
    """

    chunks: list[list[Entry]] = field(default_factory=list[list[Entry]])
    sizes: list[int] = field(default_factory=list[int])
    sums: list[int] = field(default_factory=list[int])
    count: int = 0

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries, best first."""
        return chain.from_iterable(self.chunks)

    def add(self, cost: float, index: int) -> int:
        """Add a trial's result and return its place, counted from 0."""
        chunks, sizes = self.chunks, self.sizes
        if not chunks:
            chunks.append([])
            sizes.append(0)
            self.sums.append(0)
        entry = (cost, index)
        # The last chunk that begins before the entry; an equal one is never in the next.
        at = bisect_left(chunks, entry, 1, key=_best) - 1
        chunk = chunks[at]
        inside = bisect_left(chunk, entry)
        chunk.insert(inside, entry)
        block = at // _BLOCK
        place = inside + sum(self.sums[:block]) + sum(sizes[block * _BLOCK : at])
        self.count += 1
        sizes[at] += 1
        self.sums[block] += 1
        if sizes[at] > _CHUNK:
            half = _CHUNK // 2
            chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._resized(at)
        return place

    def place(self, entry: Entry) -> int:
        """Return the place of an entry, counted from 0."""
        if not self.chunks:
            return 0
        at = bisect_left(self.chunks, entry, 1, key=_best) - 1
        block = at // _BLOCK
        before = sum(self.sums[:block]) + sum(self.sizes[block * _BLOCK : at])
        return before + bisect_left(self.chunks[at], entry)

    def remove(self, entry: Entry) -> None:
        """Remove a trial's result, if it has one."""
        if not self.chunks:
            return
        # Where the entry is the first of its chunk, the chunk before it is found.
        at = bisect_right(self.chunks, entry, 1, key=_best) - 1
        chunk = self.chunks[at]
        inside = bisect_left(chunk, entry)
        if chunk[inside : inside + 1] != [entry]:
            return
        del chunk[inside]
        self.count -= 1
        self.sizes[at] -= 1
        self.sums[at // _BLOCK] -= 1
        if not chunk:
            del self.chunks[at]
            self._resized(at)

    def _resized(self, at: int) -> None:
        """Measure the chunks from one on again: there is one more, or one less."""
        self.sizes[at:] = map(len, self.chunks[at:])
        first = at // _BLOCK
        self.sums[first:] = [
            sum(self.sizes[start : start + _BLOCK])
            for start in range(first * _BLOCK, len(self.sizes), _BLOCK)
        ]

    def evidence(self, place: int, length: int, keep: int) -> str:
        """Return a sentence on a trial's place among the results at this length so far."""
        return f"place {place + 1} of {self.count} at length {length}; {keep} train on"


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
