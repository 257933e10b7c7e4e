"""Priority: strictly by priority, first in first out within one; the default policy.

Requests start in order of priority (1 to 99, lower is more important) and arrival. The first that
could start but finds no room makes everything behind it wait: nothing of lower importance, and
nothing that came later, overtakes it (there is no backfill).

What waits makes allocations of lower importance yield: the least important first, among equals the
one that arrived last. Equals never make each other yield. Weights and owners have no effect.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from rung.scheduler.policies.planning import (
    AT_ONCE_MAX,
    Start,
    left_waiting,
    make_room,
    start_in_order,
)
from rung.scheduler.queue import Demand, Queue, Rank, Request, Walk
from rung.scheduler.state import State


class Priority(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy `priority`; it has no options."""

    def rank(self, demand: Demand) -> Rank:
        """Rank by priority, then by arrival."""
        return demand.priority, demand.arrival

    def starts(self, pool: State, queue: Queue) -> list[Start]:
        """Start as much as there is room for, in order of rank."""
        return start_in_order(pool, Walk(queue))

    def yielding(self, pool: State, starts: Sequence[Start], asked: Sequence[str]) -> list[str]:
        """Make room for what waits, by what is less important than it."""
        heads, staying = pool.queue.heads, pool.staying
        if not heads or not staying or len(pool.departing) >= AT_ONCE_MAX:
            return []
        least, _ = staying[-1].rank
        if heads[0].rank[0] >= least:
            return []

        def waiting() -> Iterator[Request]:
            return left_waiting(pool, Walk(pool.queue), starts)

        def lesser(request: Request) -> Iterator[str]:
            for rank, name in reversed(staying):
                if rank[0] <= request.priority:
                    return
                yield name

        first = next(waiting(), None)
        if first is None or first.priority >= least:
            return []
        return make_room(pool, starts, asked, waiting, lesser)
