"""Building blocks of policies: what starts in a given order, and what yields to waiting requests.

**Starts.** A `Plan` places requests one after another in idle slots. It passes over requests that
their experiment's `max_slots` holds back, and those that the pool could not serve even if it were
idle: they stay in the queue, visible, and start when an agent joins that makes them possible. A
trial that was moved, or that may not go to some agents, makes no others wait for as long as those
that it may go to have no room.

**Yielding.** Waiting requests may have the slots of allocations that are departing already,
whatever the reason. Where these do not suffice, allocations that the policy names are asked to
yield, in the policy's order and no more than needed.

What is asked to yield suffices by itself: a forecast with those slots idle asks for nothing more,
so an unchanged pool asks once. From `AT_ONCE_MAX` departures on no more are asked: that bounds the
work of a decision, and how many trials checkpoint at the same moment. The work grows linearly with
the number of allocations that may be asked to yield.

Not handled: yielding to requests that may not go everywhere (a trial that was moved, or excludes
agents), and to those of no slots.
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


class Fit(NamedTuple):
    """Where a request goes now."""

    shares: list[Share] | None
    """None: nowhere."""
    limited: bool
    """Whether it may not go everywhere, so that it makes no others wait."""


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
        shares, limited = fit(request, self._room)
        if shares is None:
            return "passed over" if limited else "no room"
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
            if fit(request, pool.room).limited:
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


def fit(request: Request, room: Room) -> Fit:
    """Return where a request goes now, by where it may go."""
    offer = room.agents.get(request.to or "")
    if request.to is not None and offer is not None and offer.size >= request.slots:
        return Fit(room.fit_on(request.to, request.slots), limited=True)
    excluded = {name for name in request.excluded if name in room.agents}
    avoided = {name for name in request.avoid if name in room.agents} - excluded
    with room.without(excluded):
        if avoided:
            with room.without(avoided):
                if room.could_fit(request.slots):
                    return Fit(room.fit(request.slots), limited=True)
        return Fit(room.fit(request.slots), limited=bool(excluded))


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
            found = clear(pool, request, room, names)
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


def clear(pool: State, request: Request, room: Room, lesser: Iterable[str]) -> dict[str, None]:
    """Give the slots of allocations back until a request fits; return those that it needs.

    One after another is added until it fits; then each, the last but one first, is left out where
    it fits without. Only those that give slots of the agents that it would fit on are looked at
    again. Nothing is returned, and the room stays as it is, where it never fits.
    """
    gaps, place = Gaps(room, request.slots), dict[str, int]()
    for name in lesser:
        place[name] = len(place)
        gaps.give_back(pool.allocations[name])
        if gaps.fits:
            break
    else:
        return {}
    on_them = {name for agent_id in gaps.agents() for name in pool.runs_on[agent_id]}
    found = sorted((name for name in on_them if name in place), key=place.__getitem__)
    needed = found[-1:]
    for name in found[-2::-1]:
        gaps.take(pool.allocations[name])
        if not gaps.fits:
            gaps.give_back(pool.allocations[name])
            needed.append(name)
    for name in needed:
        _give_back(room, pool.allocations[name])
    return dict.fromkeys(reversed(needed))


class Gaps:
    """Counts where a request fits as allocations give their slots back; the room itself stays.

    It says what `Room.fit` would say, of a request that does not fit yet, without the indexes.
    """

    def __init__(self, room: Room, slots: int) -> None:
        self._agents = room.agents
        self._slots = slots
        self._idle: dict[str, int] = {}
        """Idle slots of the agents of which that changed."""
        self._wide = 0
        """Agents with enough idle slots for all of the request."""
        self._whole = [len(agent_ids) for agent_ids in room.whole[:slots]]
        """Wholly idle agents, by size."""
        self._enough = 0
        """Sizes of which there are enough wholly idle agents."""

    @property
    def fits(self) -> bool:
        """Whether the request fits."""
        return self._wide > 0 or self._enough > 0

    def give_back(self, allocation: Allocation) -> None:
        """Count the slots of an allocation as idle."""
        for agent_id, slots in allocation.parts.items():
            offer = self._agents.get(agent_id)
            if offer is not None:  # and neither drained nor suspended
                idle = self._idle.get(agent_id, len(offer.idle)) + len(slots)
                self._idle[agent_id] = idle
                if idle >= self._slots:
                    self._wide += idle - len(slots) < self._slots
                elif idle == offer.size:
                    self._count_whole(idle, 1)

    def take(self, allocation: Allocation) -> None:
        """Count the slots of an allocation, which were given back, as taken."""
        for agent_id, slots in allocation.parts.items():
            offer = self._agents.get(agent_id)
            if offer is not None:
                idle = self._idle[agent_id]
                self._idle[agent_id] = idle - len(slots)
                if idle >= self._slots:
                    self._wide -= idle - len(slots) < self._slots
                elif idle == offer.size:
                    self._count_whole(idle, -1)

    def agents(self) -> list[str]:
        """Return the agents with changes on which the request fits, alone or with others."""
        return [
            agent_id
            for agent_id, idle in self._idle.items()
            if idle >= self._slots
            or (idle == self._agents[agent_id].size and self._is_enough(idle))
        ]

    def _count_whole(self, size: int, count: int) -> None:
        self._whole += [0] * (size + 1 - len(self._whole))
        before = self._is_enough(size)
        self._whole[size] += count
        self._enough += self._is_enough(size) - before

    def _is_enough(self, size: int) -> bool:
        return self._slots % size == 0 and self._whole[size] >= self._slots // size


def _give_back(room: Room, allocation: Allocation) -> None:
    for agent_id, slots in allocation.parts.items():
        if agent_id in room.agents:  # and neither drained nor suspended
            room.give_back(agent_id, slots)
