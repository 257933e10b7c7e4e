"""Where an allocation goes, among agents that are idle to different degrees."""

import pytest

from rung.events.allocation import Share
from rung.scheduler.placement import ZERO_SLOT_MAX, Room


def _room(**agents: tuple[int, int]) -> Room:
    """Return a room of agents: (slots, how many of the first are taken)."""
    room = Room()
    for agent_id, (size, taken) in agents.items():
        room.join(agent_id, 1, range(size))
        if taken:
            room.take(Share(agent_id=agent_id, incarnation=1, slots=list(range(taken))))
    return room


def _fit(room: Room, slots: int) -> str | None:
    shares = room.fit(slots)
    if shares is None:
        return None
    return " ".join(f"{share.agent_id}:{','.join(map(str, share.slots))}" for share in shares)


@pytest.mark.parametrize(
    ("room", "slots", "expected"),
    [
        (_room(a=(4, 0), b=(4, 2), c=(4, 1)), 2, "b:2,3"),
        (_room(a=(4, 0), b=(4, 3), c=(4, 1)), 2, "c:1,2"),
        (_room(b=(4, 0), a=(4, 0)), 4, "a:0,1,2,3"),
        (_room(a=(8, 0), b=(2, 0)), 2, "b:0,1"),
        (
            _room(a=(2, 0), b=(2, 0), c=(2, 0), d=(2, 0), e=(4, 0), f=(4, 0)),
            8,
            "e:0,1,2,3 f:0,1,2,3",
        ),
        (_room(a=(2, 0), b=(2, 0), c=(4, 0)), 6, None),
        (_room(a=(2, 0), b=(2, 1), c=(2, 0), d=(2, 0)), 6, "a:0,1 c:0,1 d:0,1"),
        (_room(a=(2, 0), b=(2, 1), c=(2, 0)), 6, None),
        (_room(a=(2, 0), b=(2, 0)), 3, None),
        (_room(a=(2, 0), b=(2, 0)), 5, None),
        (_room(), 1, None),
        (_room(), 0, None),
        (_room(b=(0, 0), c=(2, 2)), 0, "b:"),
    ],
    ids=[
        "the fullest that has room",
        "as full as fits",
        "the smallest id among equals",
        "the smallest agent that fits",
        "a gang: the largest agents, the fewest of them",
        "a gang: agents of equal size only",
        "a gang: only wholly idle agents",
        "a gang: all or nothing",
        "a gang: whole agents only",
        "a gang: not more than there are",
        "no agents, no slots",
        "no agents, not even for no slots",
        "no slots: any agent",
    ],
)
def test_fit(room: Room, slots: int, expected: str | None) -> None:
    """An allocation goes to the place that keeps the largest gaps whole."""
    assert _fit(room, slots) == expected


def test_could_fit_looks_at_slots_that_are_taken_too() -> None:
    """What the pool could serve if it were idle is possible, whatever runs now."""
    room = _room(a=(2, 2), b=(2, 1), c=(2, 0), d=(4, 4))

    assert [slots for slots in [*range(-1, 9), 10**12] if room.could_fit(slots)] == [
        *range(5),
        6,
    ]


def test_allocations_of_no_slots_are_spread_and_limited() -> None:
    """They go round the agents, and an agent takes only so many; a slot is never involved."""
    room = _room(a=(1, 1), b=(1, 0))
    places = []
    while (shares := room.fit(0)) is not None:
        room.take(shares[0])
        places.append(shares[0].agent_id)

    assert places == ["a", "b"] * ZERO_SLOT_MAX
    room.give_back("b", [])
    assert _fit(room, 0) == "b:"
    assert _fit(room, 1) == "b:0"


def test_a_fork_is_independent() -> None:
    """Planning on a fork leaves the room as it was."""
    room = _room(a=(2, 0), b=(2, 1))
    before = _room(a=(2, 0), b=(2, 1))
    fork = room.fork()
    fork.take(Share(agent_id="a", incarnation=1, slots=[0, 1]))
    fork.leave("b")

    assert room == before
    assert fork != before


def test_a_slot_is_not_taken_twice() -> None:
    """A share of slots that are not idle breaks an invariant, and says so."""
    room = _room(a=(2, 1))

    with pytest.raises(AssertionError):
        room.take(Share(agent_id="a", incarnation=1, slots=[0]))
