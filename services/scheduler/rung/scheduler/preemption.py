"""Who yields: the allocations that stand in the way of something more important.

What the policy leaves waiting is looked at in its own order. A request may have the slots of
allocations that are on their way out already, whatever made them leave; where these do not
suffice, allocations of lower importance are asked to yield: the least important first, among
equals the one that arrived last, and none that is not needed. Equals never make each other yield.

A trial that yields checkpoints within its grace period and comes back with its next run, which
has the place in the order that the trial had before (`machine.py` keeps its claim).

What is asked to yield suffices by itself: nothing that follows from a forecast with those slots
idle asks for more, so the same pool looked at twice asks once.

Once so many are on their way out that what they leave must be seen first, nobody else is asked:
that bounds the work of a decision, and how many trials checkpoint at the same moment.

Not handled: requests that may not go everywhere (a trial that was moved), and those of no slots.
"""

from collections.abc import Sequence
from typing import Final

from rung.scheduler.placement import Room
from rung.scheduler.priority import Start, left_waiting
from rung.scheduler.queue import Request
from rung.scheduler.state import Allocation, State

AT_ONCE_MAX: Final = 64
"""Allocations on their way out, whatever made them leave, from which on nobody else is asked."""


def choose_yielding(state: State, starts: Sequence[Start], asked: Sequence[str] = ()) -> list[str]:
    """Return which allocations are to yield now; changes nothing.

    Args:
        state: the pool.
        starts: what starts now.
        asked: allocations that are asked to yield now for another reason.
    """
    lowest = max(state.staying, default=0)
    heads = state.queue.heads
    if not heads or heads[0].priority >= lowest or len(state.departing) >= AT_ONCE_MAX:
        return []
    first = next(left_waiting(state.queue, state.room, state.held, starts), None)
    if first is None or first.priority >= lowest:
        return []
    chosen = list(asked)
    while found := _more(state, starts, chosen):
        chosen += found
    return chosen[len(asked) :]


def _more(state: State, starts: Sequence[Start], chosen: Sequence[str]) -> list[str]:
    """Return who must yield besides those that were chosen already."""
    room = _forecast(state, starts, chosen)
    more: list[str] = []
    for request in left_waiting(state.queue, state.room, state.held, starts):
        shares = room.fit(request.slots)
        if shares is None:
            if len(state.departing) + len(chosen) + len(more) >= AT_ONCE_MAX:
                break
            found = _in_the_way(state, request, room, [*chosen, *more])
            if not found:
                break
            for name in found:
                _give_back(room, state.allocations[name])
            more += found
            shares = room.fit(request.slots)
            assert shares is not None, request
        for share in shares:
            room.take(share)
    return more


def _forecast(state: State, starts: Sequence[Start], chosen: Sequence[str]) -> Room:
    """Return the room as it will be once all that leaves is gone and all that starts is there."""
    room = state.room.fork()
    for start in starts:
        for share in start.shares:
            room.take(share)
    for name in dict.fromkeys((*state.departing, *state.stricken, *chosen)):
        _give_back(room, state.allocations[name])
    return room


def _in_the_way(state: State, request: Request, room: Room, chosen: Sequence[str]) -> list[str]:
    """Return the allocations without which the request fits, none if that cannot be."""
    lesser = [
        (allocation.priority, allocation.arrival, name)
        for name, allocation in state.allocations.items()
        if _stays(state, name)
        and allocation.priority > request.priority
        and name not in chosen
        and allocation.slotted
    ]
    yielding: list[str] = []
    wider = room.fork()
    for _, _, name in sorted(lesser, reverse=True):
        if wider.fit(request.slots) is not None:
            break
        _give_back(wider, state.allocations[name])
        yielding.append(name)
    if wider.fit(request.slots) is None:
        return []
    for name in reversed(yielding[:-1]):  # the most important of them first
        rest = [other for other in yielding if other != name]
        if _fits(state, request, room, rest):
            yielding = rest
    return yielding


def _fits(state: State, request: Request, room: Room, without: Sequence[str]) -> bool:
    room = room.fork()
    for name in without:
        _give_back(room, state.allocations[name])
    return room.fit(request.slots) is not None


def _stays(state: State, name: str) -> bool:
    return state.allocations[name].stays and name not in state.stricken


def _give_back(room: Room, allocation: Allocation) -> None:
    for agent_id, slots in allocation.parts.items():
        if agent_id in room.agents:  # and not drained
            room.give_back(agent_id, slots)
