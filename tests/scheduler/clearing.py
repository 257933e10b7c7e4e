"""Whom to ask to yield, by trying each one with the whole room: as plainly, and as slowly."""

from collections.abc import Iterable

from rung.events.allocation import Share
from rung.scheduler.placement import Room
from rung.scheduler.queue import Request
from rung.scheduler.state import Allocation, State


def clear_plainly(
    pool: State, request: Request, room: Room, lesser: Iterable[str]
) -> dict[str, None]:
    """Return what `planning.clear` is to return, and leave the room as that is to leave it."""
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
        if agent_id in room.agents:
            room.give_back(agent_id, slots)


def _take_again(room: Room, allocation: Allocation) -> None:
    for agent_id, slots in allocation.parts.items():
        offer = room.agents.get(agent_id)
        if offer is not None:
            room.take(Share(agent_id=agent_id, incarnation=offer.incarnation, slots=slots))
