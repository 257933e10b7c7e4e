"""What waits for slots, kept in the order in which it would start.

Requests that a policy can tell apart only by their arrival (one experiment, one priority, one
number of slots) form a *line*. A policy looks at the first of each line, in order of priority and
arrival, and can pass over a line of thousands in one step. Adding and removing cost in proportion
to the logarithm of the number of lines.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct, field

from rung.events.trial import RunSpec


class Request(Struct, frozen=True, kw_only=True):
    """One allocation that waits."""

    allocation_id: str
    experiment_id: str
    slots: int
    priority: int
    max_slots: int | None
    arrival: int
    """Counted over the pool; first in, first out within one priority."""
    spec: RunSpec

    @property
    def line(self) -> str:
        """The line in which it waits."""
        return f"{self.priority}/{self.slots}/{self.max_slots}/{self.experiment_id}"


class Head(NamedTuple):
    """The first of a line; sorts in order of importance, then of arrival."""

    priority: int
    arrival: int
    line: str


class Queue(Struct, kw_only=True):
    """All that waits."""

    lines: dict[str, dict[str, Request]] = field(default_factory=dict[str, dict[str, Request]])
    """Requests by line and allocation id, in order of arrival."""
    heads: list[Head] = field(default_factory=list[Head])
    """The first of each line, sorted."""
    line_of: dict[str, str] = field(default_factory=dict[str, str])
    """Allocation id → line."""

    def __contains__(self, allocation_id: str) -> bool:
        return allocation_id in self.line_of

    def __len__(self) -> int:
        return len(self.line_of)

    def add(self, request: Request) -> None:
        """Put a request at the end of its line."""
        assert request.allocation_id not in self.line_of, request
        line = self.lines.setdefault(request.line, {})
        if not line:
            insort(self.heads, _head(request))
        line[request.allocation_id] = request
        self.line_of[request.allocation_id] = request.line

    def remove(self, allocation_id: str) -> Request:
        """Take a request out, wherever in its line it is."""
        name = self.line_of.pop(allocation_id)
        line = self.lines[name]
        first = _head(next(iter(line.values())))
        request = line.pop(allocation_id)
        if request.arrival == first.arrival:
            del self.heads[bisect_left(self.heads, first)]
            if line:
                insort(self.heads, _head(next(iter(line.values()))))
            else:
                del self.lines[name]
        return request

    def waiting(self, line: str) -> Iterator[Request]:
        """Return the requests of a line, the first first."""
        return iter(self.lines[line].values())


def _head(request: Request) -> Head:
    return Head(request.priority, request.arrival, request.line)
