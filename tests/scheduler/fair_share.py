"""Fair share: owners hold slots in proportion to the weights of what they run.

An example of a policy. The request of the owner that holds the least goes first; the first that
finds no room makes the others wait. What waits makes allocations of an owner that holds more
yield, the newest first, as long as that owner does not come to hold less than the one that gains.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from rung.scheduler.policies.planning import Plan, Start, left_waiting, make_room
from rung.scheduler.queue import Demand, Queue, Rank, Request, Walk
from rung.scheduler.state import State


class FairShare(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy; its fields are its options."""

    preempts: bool = True
    """Whether anything yields at all."""

    def rank(self, demand: Demand) -> Rank:
        """Rank by submission, then by arrival."""
        return demand.submission.time_ms, demand.arrival

    def starts(self, pool: State, queue: Queue) -> list[Start]:
        """Start what there is room for, the least served owner's first."""
        held, plan = _held(pool), Plan(pool)
        walk = Walk(queue, by=lambda request: _part(held, request))
        for request in walk:
            placed = plan.place(request)
            if placed == "no room":
                break
            if placed == "starts":
                held[request.submission.owner] += request.slots
                walk.advance()
        return plan.starts

    def yielding(self, pool: State, starts: Sequence[Start], asked: Sequence[str]) -> list[str]:
        """Make room for what waits, by what owners hold who hold more."""
        held = _held(pool)
        for start in starts:
            held[start.request.submission.owner] += start.request.slots
        planned = held.copy()

        def waiting() -> Iterator[Request]:
            planned.clear()
            planned.update(held)
            walk = Walk(pool.queue, by=lambda request: _part(planned, request))
            for request in left_waiting(pool, walk, starts):
                yield request
                planned[request.submission.owner] += request.slots

        def lesser(request: Request) -> Iterator[str]:
            left = held.copy()
            gains = _part(planned, request, request.slots)
            for _, name in reversed(pool.staying):
                other = pool.allocations[name]
                if _part(left, other, -other.slots) >= gains:
                    left[other.submission.owner] -= other.slots
                    yield name

        return make_room(pool, starts, asked, waiting, lesser) if self.preempts else []


def _held(pool: State) -> Counter[str]:
    """Return the slots of each owner that stay with it."""
    held = Counter[str]()
    for _, name in pool.staying:
        held[pool.allocations[name].submission.owner] += pool.allocations[name].slots
    return held


def _part(held: Counter[str], demand: Demand, more: int = 0) -> float:
    """Return what an owner holds, or would hold with some slots more, for its weight."""
    return (held[demand.submission.owner] + more) / demand.submission.weight
