"""Building blocks of policies: what starts in a given order, and what yields to waiting requests.

**Starts.** A `Plan` places requests one after another in idle slots. It passes over requests that
their experiment's `max_slots` holds back, and those that the pool could not serve even if it were
idle: they stay in the queue, visible, and start when an agent joins that makes them possible. A
moved trial makes no others wait, for as long as the agents that it may go to have no room.

**Yielding.** Waiting requests may have the slots of allocations that are departing already,
whatever the reason. Where these do not suffice, allocations that the policy names are asked to
yield, in the policy's order and no more than needed.

What is asked to yield suffices by itself: a forecast with those slots idle asks for nothing more,
so an unchanged pool asks once. From `AT_ONCE_MAX` departures on no more are asked: that bounds the
work of a decision, and how many trials checkpoint at the same moment. The work grows linearly with
the number of allocations that may be asked to yield.

Not handled: yielding to requests that may not go everywhere (a moved trial), and to those of no
slots.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from rung.events.allocation import Share
from rung.scheduler.placement import Room
from rung.scheduler.queue import Request, Walk
from rung.scheduler.state import Allocation, State

AT_ONCE_MAX: Final = 64
"""Departing allocations, from which on no other is asked to yield."""

Placed = Literal["starts", "passed over", "no room"]


class Start(NamedTuple):
    """A request that gets its slots."""

    request: Request
    shares: list[Share]


class Plan:
    """What starts now: requests placed one after another; the pool itself stays as it is."""

    def __init__(self, pool: State) -> None:
        self.starts: list[Start] = []
        self._room = pool.room
        self._held = _Held(pool.held)

    def place(self, request: Request) -> Placed:
        """Let a request start where there is room for it."""
        if not self._held.allows(request) or not self._room.could_fit(request.slots):
            return "passed over"
        allowed = room_for(request, self._room)
        shares = (allowed or self._room).fit(request.slots)
        if shares is None:
            return "no room" if allowed is None else "passed over"
        if not self.starts:
            self._room = self._room.fork()
        for share in shares:
            self._room.take(share)
        self._held.add(request)
        self.starts.append(Start(request, shares))
        return "starts"


def start_in_order(pool: State, walk: Walk) -> list[Start]:
    """Return what starts if nothing overtakes a request that finds no room (no backfill)."""
    plan = Plan(pool)
    for request in walk:
        placed = plan.place(request)
        if placed == "no room":
            break
        if placed == "starts":
            walk.advance()
    return plan.starts


def left_waiting(pool: State, walk: Walk, starts: Sequence[Start]) -> Iterator[Request]:
    """Yield what would start besides `starts` if there were room, in the order of a walk."""
    started = {start.request.allocation_id for start in starts}
    held = _Held(pool.held)
    for request in walk:
        if request.allocation_id not in started:
            if not held.allows(request) or not pool.room.could_fit(request.slots):
                continue
            if room_for(request, pool.room) is not None:
                continue
            yield request
        held.add(request)
        walk.advance()


def make_room(
    pool: State,
    starts: Sequence[Start],
    asked: Sequence[str],
    waiting: Callable[[], Iterable[Request]],
    lesser: Callable[[Request], Iterable[str]],
) -> list[str]:
    """Return which allocations are to yield now, so that waiting requests fit.

    Args:
        pool: its state.
        starts: what starts now.
        asked: allocations that are asked to yield now for another reason.
        waiting: returns what is left waiting, in order.
        lesser: returns the allocations that may be asked to yield to a request, in the order in
            which to ask them; they hold slots and are not signaled.
    """
    chosen = dict.fromkeys(asked)
    while more := _more(pool, starts, chosen, waiting, lesser):
        chosen |= more
    return list(chosen)[len(asked) :]


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


class _Held:
    """The slots that each experiment holds, with those that a plan gives it."""

    def __init__(self, held: Mapping[str, int]) -> None:
        self._held = held
        self._more: dict[str, int] = {}

    def allows(self, request: Request) -> bool:
        name = request.experiment_id
        return not request.held_back(self._held.get(name, 0) + self._more.get(name, 0))

    def add(self, request: Request) -> None:
        name = request.experiment_id
        self._more[name] = self._more.get(name, 0) + request.slots


def _more(
    pool: State,
    starts: Sequence[Start],
    chosen: Mapping[str, None],
    waiting: Callable[[], Iterable[Request]],
    lesser: Callable[[Request], Iterable[str]],
) -> dict[str, None]:
    """Return what must yield besides those that were chosen already."""
    room = _forecast(pool, starts, chosen)
    leaving = dict.fromkeys((*pool.stricken, *chosen))
    more: dict[str, None] = {}
    for request in waiting():
        shares = room.fit(request.slots)
        if shares is None:
            if len(pool.departing) + len(chosen) + len(more) >= AT_ONCE_MAX:
                break
            names = (name for name in lesser(request) if name not in leaving)
            found = _clear(pool, request, room, names)
            if not found:
                break
            leaving |= found
            more |= found
            shares = room.fit(request.slots)
            assert shares is not None, request
        for share in shares:
            room.take(share)
    return more


def _forecast(pool: State, starts: Sequence[Start], chosen: Iterable[str]) -> Room:
    """Return the room with all departing allocations gone and all starts placed."""
    room = pool.room.fork()
    for start in starts:
        for share in start.shares:
            room.take(share)
    for name in dict.fromkeys((*pool.departing, *pool.stricken, *chosen)):
        _give_back(room, pool.allocations[name])
    return room


def _clear(pool: State, request: Request, room: Room, lesser: Iterable[str]) -> dict[str, None]:
    """Give the slots of allocations back until a request fits; return those that it needs.

    One after another is added until it fits; then each, the last but one first, has its slots
    taken again where it fits without them. Nothing is returned where it never fits; the room is
    of no use then.
    """
    found: dict[str, None] = {}
    for name in lesser:
        _give_back(room, pool.allocations[name])
        found[name] = None
        if room.fit(request.slots) is not None:
            break
    else:
        return {}
    for name in list(found)[-2::-1]:
        _take_again(room, pool.allocations[name])
        if room.fit(request.slots) is not None:
            del found[name]
        else:
            _give_back(room, pool.allocations[name])
    return found


def _give_back(room: Room, allocation: Allocation) -> None:
    for agent_id, slots in allocation.parts.items():
        if agent_id in room.agents:  # and neither drained nor suspended
            room.give_back(agent_id, slots)


def _take_again(room: Room, allocation: Allocation) -> None:
    for agent_id, slots in allocation.parts.items():
        offer = room.agents.get(agent_id)
        if offer is not None:
            room.take(Share(agent_id=agent_id, incarnation=offer.incarnation, slots=slots))
