"""The ordering policy: strict priority, first in first out within one.

Requests start in order of priority (1 to 99, lower is more important) and arrival. The first that
could start but finds no room now makes everything behind it wait: nothing of lower importance,
and nothing that came later, overtakes it (there is no backfill). Two kinds of request are passed
over, for nobody would gain from waiting behind them:

* those that their own experiment's `max_slots` holds back;
* those that the pool could not serve even if it were idle. They stay in the queue, where people
  see them, and start when an agent joins that makes them possible.

And a third kind waits without making others wait: a trial that was moved, for as long as the
agents that it may go to have no room.

A policy is a function from what waits, what is idle and what experiments hold to what starts now.
Fair share is to be another one; `preemption.py` asks, of what a policy leaves waiting, which
running allocations stand in its way.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from rung.events.allocation import Share
from rung.scheduler.placement import Room
from rung.scheduler.queue import Head, Queue, Request


class Start(NamedTuple):
    """A request that gets its slots."""

    request: Request
    shares: list[Share]


def choose(queue: Queue, room: Room, held: Mapping[str, int]) -> list[Start]:
    """Return what starts now, in order; changes nothing.

    Args:
        queue: what waits.
        room: what is idle.
        held: slots that each experiment holds.
    """
    starts: list[Start] = []
    more: dict[str, int] = {}
    order = _Order(queue)
    while (request := order.next()) is not None:
        holds = held.get(request.experiment_id, 0) + more.get(request.experiment_id, 0)
        if request.held_back(holds) or not room.could_fit(request.slots):
            continue
        allowed = room_for(request, room)
        shares = (allowed or room).fit(request.slots)
        if shares is None and allowed is not None:
            continue
        if shares is None:
            break
        if not starts:
            room = room.fork()
        for share in shares:
            room.take(share)
        more[request.experiment_id] = more.get(request.experiment_id, 0) + request.slots
        starts.append(Start(request, shares))
        order.advance()
    return starts


def room_for(request: Request, room: Room) -> Room | None:
    """Return the part of the room that the request may go to, None if that is all of it."""
    offer = room.agents.get(request.to or "")
    if request.to is not None and offer is not None and offer.size >= request.slots:
        return room.among([request.to])
    if any(agent_id in room.agents for agent_id in request.avoid):
        others = room.among(a for a in room.agents if a not in request.avoid)
        if others.could_fit(request.slots):
            return others
    return None


def left_waiting(
    queue: Queue, room: Room, held: Mapping[str, int], starts: Sequence[Start]
) -> Iterator[Request]:
    """Yield what would start if there were room, in order; changes nothing.

    Args:
        queue: what waits.
        room: the pool's agents.
        held: slots that each experiment holds.
        starts: what starts now.
    """
    started = {start.request.allocation_id for start in starts}
    more: dict[str, int] = {}
    order = _Order(queue)
    while (request := order.next()) is not None:
        holds = held.get(request.experiment_id, 0) + more.get(request.experiment_id, 0)
        if request.allocation_id not in started:
            if request.held_back(holds) or not room.could_fit(request.slots):
                continue
            if room_for(request, room) is not None:
                continue
            yield request
        more[request.experiment_id] = more.get(request.experiment_id, 0) + request.slots
        order.advance()


class _Order:
    """Walks a queue in order of priority and arrival, without changing it.

    A line is left behind unless `advance` says that its first request starts; then the next one
    of the line takes its turn.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._untouched = 0
        self._renewed: list[tuple[Head, Request]] = []
        self._lines: dict[str, Iterator[Request]] = {}
        self._line = ""

    def next(self) -> Request | None:
        """Return the next request in order, None at the end."""
        heads = self._queue.heads
        if self._renewed and (
            self._untouched == len(heads) or self._renewed[0][0] < heads[self._untouched]
        ):
            head, request = heappop(self._renewed)
            self._line = head.line
            return request
        if self._untouched == len(heads):
            return None
        self._line = heads[self._untouched].line
        self._untouched += 1
        self._lines[self._line] = self._queue.waiting(self._line)
        return next(self._lines[self._line])

    def advance(self) -> None:
        """Let the line of the last request go on with its next one."""
        request = next(self._lines[self._line], None)
        if request is not None:
            head = Head(request.priority, request.arrival, self._line)
            heappush(self._renewed, (head, request))
