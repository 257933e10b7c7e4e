"""Queue: the requests that wait for slots, in the order that the pool's policy gives them.

Requests that differ in nothing but their arrival (one experiment, one priority, one number of
slots) form a *line*, first in, first out. A policy looks at the first of each line, the *heads*,
sorted by the rank that it gave them; so a line of thousands is passed over in one step. A request
that kept an earlier place, or may not go everywhere, is a line of its own.

A line that its experiment's `max_slots` holds back has no head until the experiment holds less,
so experiments at their limits cost nothing.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from rung.events.experiment import Submission
from rung.events.trial import RunSpec

Rank = tuple[int, ...]
"""What requests are sorted by: the smallest first."""

UNKNOWN: Final = Submission()
"""That of an experiment of which nothing is on record."""


class Demand(Struct, kw_only=True):
    """What a policy decides by: the slots that an allocation wants, or has, and for whom."""

    experiment_id: str
    slots: int
    priority: int
    """1 to 99, lower is more important."""
    max_slots: int | None
    """How many slots its experiment may hold at once."""
    arrival: int
    """Counted over the pool; a trial that yielded keeps that of its earlier run."""
    submission: Submission = UNKNOWN
    """Owner, workspace, weight and time of submission of its experiment."""
    rank: Rank = ()
    """Given by the pool's policy."""


class Request(Demand, kw_only=True):
    """An allocation that waits."""

    allocation_id: str
    spec: RunSpec
    claimed: bool = False
    """Whether it has its arrival from an earlier run of the trial, which was asked to yield."""
    avoid: list[str] = field(default_factory=list[str])
    """Agents that it goes to only where there is no other that could ever serve it."""
    to: str | None = None
    """The one agent that it goes to, for as long as that is there."""
    excluded: list[str] = field(default_factory=list[str])
    """Agents that it does not go to, also where there is no other, unless it was moved there."""

    @property
    def line(self) -> str:
        """The line in which it waits."""
        alike = f"{self.priority}/{self.slots}/{self.max_slots}/{self.experiment_id}"
        return (
            f"{alike}/{self.allocation_id}" if self.claimed or self.to or self.excluded else alike
        )

    def held_back(self, held: int) -> bool:
        """Return whether its experiment, holding so many slots, may not have it now."""
        return self.max_slots is not None and held + self.slots > self.max_slots


class Ranked(NamedTuple):
    """A line or an allocation at its place in the policy's order."""

    rank: Rank
    name: str


class Queue(Struct, kw_only=True, dict=True):
    """All waiting requests of a pool.

    The index by trial is no field: it follows from the fields, and no snapshot holds it.
    """

    lines: dict[str, dict[str, Request]] = field(default_factory=dict[str, dict[str, Request]])
    """Requests by line and allocation id, in order of arrival."""
    heads: list[Ranked] = field(default_factory=list[Ranked])
    """The lines that are not held back, sorted by the rank of their first request."""
    line_of: dict[str, str] = field(default_factory=dict[str, str])
    """Allocation id → line."""
    lines_of: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Experiment id → its lines."""

    def __post_init__(self) -> None:
        """Build the index by trial."""
        self._of_trial: dict[str, list[str]] = {}
        for allocation_id in self.line_of:
            self._note(allocation_id)

    def __contains__(self, allocation_id: str) -> bool:
        return allocation_id in self.line_of

    def __len__(self) -> int:
        return len(self.line_of)

    def of_trial(self, trial_id: str) -> Request | None:
        """Return the request for a run of the trial, None if none waits."""
        for allocation_id in self._of_trial.get(trial_id, []):
            return self.lines[self.line_of[allocation_id]][allocation_id]
        return None

    def of_experiment(self, experiment_id: str) -> list[Request]:
        """Return the requests of an experiment, each line in its order."""
        lines = self.lines_of.get(experiment_id, [])
        return [request for name in lines for request in self.lines[name].values()]

    def add(self, request: Request, held: int) -> None:
        """Put a request at the end of its line; its experiment holds so many slots."""
        assert request.allocation_id not in self.line_of, request
        name = request.line
        self.line_of[request.allocation_id] = name
        self._note(request.allocation_id)
        if name in self.lines:
            self.lines[name][request.allocation_id] = request
        else:
            self.lines[name] = {request.allocation_id: request}
            self.lines_of.setdefault(request.experiment_id, []).append(name)
            self._show(_head(request), visible=not request.held_back(held))

    def remove(self, allocation_id: str) -> Request:
        """Take a request out, wherever in its line it is."""
        name = self.line_of.pop(allocation_id)
        trial_id = _trial_of(allocation_id)
        self._of_trial[trial_id].remove(allocation_id)
        if not self._of_trial[trial_id]:
            del self._of_trial[trial_id]
        line = self.lines[name]
        first = next(iter(line.values()))
        request = line.pop(allocation_id)
        visible = request is first and self._show(_head(first), visible=False)
        if not line:
            del self.lines[name]
            self._forget(request.experiment_id, name)
        elif visible:
            self._show(_head(next(iter(line.values()))), visible=True)
        return request

    def hold(self, experiment_id: str, held: int) -> None:
        """Set how many slots an experiment holds: show its lines, or hold them back."""
        for name in self.lines_of.get(experiment_id, []):
            first = next(iter(self.lines[name].values()))
            self._show(_head(first), visible=not first.held_back(held))

    def rerank(self, rank: Callable[[Demand], Rank]) -> None:
        """Put all requests into the order of another policy."""
        shown = [head.name for head in self.heads]
        for line in self.lines.values():
            for request in line.values():
                request.rank = rank(request)
        self.heads = sorted(_head(next(self.waiting(name))) for name in shown)

    def waiting(self, line: str) -> Iterator[Request]:
        """Return the requests of a line, the first first."""
        return iter(self.lines[line].values())

    def _show(self, head: Ranked, *, visible: bool) -> bool:
        """Add a head to those to look at, or remove it; return whether it was there."""
        place = bisect_left(self.heads, head)
        was_visible = place < len(self.heads) and self.heads[place] == head
        if visible and not was_visible:
            self.heads.insert(place, head)
        elif was_visible and not visible:
            del self.heads[place]
        return was_visible

    def _note(self, allocation_id: str) -> None:
        self._of_trial.setdefault(_trial_of(allocation_id), []).append(allocation_id)

    def _forget(self, experiment_id: str, line: str) -> None:
        self.lines_of[experiment_id].remove(line)
        if not self.lines_of[experiment_id]:
            del self.lines_of[experiment_id]


class Walk:
    """Goes once through a queue, in order of rank or of a key, without changing the queue.

    It yields the first request of each line, and the next one of a line after `advance`.
    """

    def __init__(self, queue: Queue, by: Callable[[Request], Any] | None = None) -> None:
        """Begin at the head of a queue.

        Args:
            queue: of the pool.
            by: a key that precedes the rank; it may grow during the walk, such as the slots that
                an owner holds with what starts now.
        """
        self._queue = queue
        self._by = by
        self._opened: list[tuple[Any, Ranked, Request]] = []
        self._untouched = 0
        self._lines: dict[str, Iterator[Request]] = {}
        self._line = ""
        if by is not None:
            for _ in queue.heads:
                head, request = self._open()
                self._opened.append((by(request), head, request))
            heapify(self._opened)

    def __iter__(self) -> "Walk":
        return self

    def __next__(self) -> Request:
        while True:
            heads = self._queue.heads
            if self._untouched < len(heads) and not (
                self._opened and self._opened[0][1] < heads[self._untouched]
            ):
                head, request = self._open()
            elif not self._opened:
                raise StopIteration
            else:
                key, head, request = heappop(self._opened)
                if self._by is not None and self._by(request) > key:
                    heappush(self._opened, (self._by(request), head, request))
                    continue
            self._line = head.name
            return request

    def advance(self) -> None:
        """Continue the line of the last request with its next one, because that one starts."""
        request = next(self._lines[self._line], None)
        if request is not None:
            key = () if self._by is None else self._by(request)
            heappush(self._opened, (key, _head(request), request))

    def _open(self) -> tuple[Ranked, Request]:
        """Return the next head that was not looked at, and its request."""
        head = self._queue.heads[self._untouched]
        self._untouched += 1
        self._lines[head.name] = self._queue.waiting(head.name)
        return head, next(self._lines[head.name])


def _trial_of(allocation_id: str) -> str:
    return allocation_id.rpartition(".")[0]


def _head(request: Request) -> Ranked:
    return Ranked(request.rank, request.line)
