"""What waits for slots, kept in the order in which it would start.

Requests that a policy can tell apart only by their arrival (one experiment, one priority, one
number of slots) form a *line*. A policy looks at the first of each line, in order of priority and
arrival, and can pass over a line of thousands in one step. A request that has an earlier place, or
may not go everywhere, is a line of its own.

A line that its experiment's `max_slots` holds back is not even looked at: it has no head until the
experiment holds less. So a pool full of experiments at their limits costs no more than another.
"""

from bisect import bisect_left
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
    claimed: bool = False
    """Whether it has its arrival from an earlier run of the trial, which was asked to yield."""
    avoid: list[str] = field(default_factory=list[str])
    """Agents that it goes to only where there is no other that could ever serve it."""
    to: str | None = None
    """The one agent that it shall go to, for as long as that is there."""

    @property
    def line(self) -> str:
        """The line in which it waits."""
        alike = f"{self.priority}/{self.slots}/{self.max_slots}/{self.experiment_id}"
        return f"{alike}/{self.allocation_id}" if self.claimed or self.to else alike

    def held_back(self, held: int) -> bool:
        """Return whether its experiment, holding so many slots, may not have it now."""
        return self.max_slots is not None and held + self.slots > self.max_slots


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
    """The first of each line that is not held back, sorted."""
    line_of: dict[str, str] = field(default_factory=dict[str, str])
    """Allocation id → line."""
    lines_of: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Experiment id → its lines."""

    def __contains__(self, allocation_id: str) -> bool:
        return allocation_id in self.line_of

    def __len__(self) -> int:
        return len(self.line_of)

    def of_trial(self, trial_id: str) -> Request | None:
        """Return the request for a run of the trial, None if none waits."""
        for allocation_id, name in self.line_of.items():
            if allocation_id.rpartition(".")[0] == trial_id:
                return self.lines[name][allocation_id]
        return None

    def add(self, request: Request, held: int) -> None:
        """Put a request at the end of its line; its experiment holds so many slots."""
        assert request.allocation_id not in self.line_of, request
        name = request.line
        self.line_of[request.allocation_id] = name
        if name in self.lines:
            self.lines[name][request.allocation_id] = request
        else:
            self.lines[name] = {request.allocation_id: request}
            self.lines_of.setdefault(request.experiment_id, []).append(name)
            self._show(_head(request), visible=not request.held_back(held))

    def remove(self, allocation_id: str) -> Request:
        """Take a request out, wherever in its line it is."""
        name = self.line_of.pop(allocation_id)
        line = self.lines[name]
        first = _head(next(iter(line.values())))
        request = line.pop(allocation_id)
        visible = request.arrival == first.arrival and self._show(first, visible=False)
        if not line:
            del self.lines[name]
            self._forget(request.experiment_id, name)
        elif visible:
            self._show(_head(next(iter(line.values()))), visible=True)
        return request

    def hold(self, experiment_id: str, held: int) -> None:
        """Take note of how many slots an experiment holds now."""
        for name in self.lines_of.get(experiment_id, []):
            first = next(iter(self.lines[name].values()))
            self._show(_head(first), visible=not first.held_back(held))

    def waiting(self, line: str) -> Iterator[Request]:
        """Return the requests of a line, the first first."""
        return iter(self.lines[line].values())

    def _show(self, head: Head, *, visible: bool) -> bool:
        """Put a head among those to look at, or take it out; return whether it was there."""
        place = bisect_left(self.heads, head)
        was_visible = place < len(self.heads) and self.heads[place] == head
        if visible and not was_visible:
            self.heads.insert(place, head)
        elif was_visible and not visible:
            del self.heads[place]
        return was_visible

    def _forget(self, experiment_id: str, line: str) -> None:
        self.lines_of[experiment_id].remove(line)
        if not self.lines_of[experiment_id]:
            del self.lines_of[experiment_id]


def _head(request: Request) -> Head:
    return Head(request.priority, request.arrival, request.line)
