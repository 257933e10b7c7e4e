"""What the agents of now could never place."""

import itertools

import pytest

from rung.events.allocation import Slot
from rung.gateway.feasibility import shortage
from rung.gateway.projections.pools import Agent, Pool
from rung.scheduler.placement import Room


def _pool(name: str, *sizes: int, state: str = "joined") -> Pool:
    """Return a pool of agents of these sizes."""
    pool = Pool(name)
    for number, size in enumerate(sizes):
        slots = [Slot(id=slot, kind="cuda", name="GPU") for slot in range(size)]
        pool.agents[f"a{number}"] = Agent(f"a{number}", "host", 1, slots, state, "t")  # type: ignore[arg-type]
    return pool


@pytest.mark.parametrize("sizes", list(itertools.combinations_with_replacement(range(5), 3)))
def test_the_scheduler_places_what_lacks_nothing(sizes: tuple[int, ...]) -> None:
    """What is said here of a pool is what the scheduler finds when all of its slots are idle."""
    room = Room()
    for number, size in enumerate(sizes):
        room.join(f"a{number}", 1, range(size))
    for slots in range(14):
        lack = shortage([_pool("default", *sizes)], "default", slots)
        assert (lack is None) == room.could_fit(slots), slots


def test_what_there_is_is_named() -> None:
    """A pool that nobody joined, or that is too small: with all pools and the agents' sizes."""
    pools = [_pool("default", 2, 2, 8), _pool("gone", 4, state="lost"), _pool("x", 1)]
    there = "; there is default (2 x 2 slots, 1 x 8 slots), x (1 x 1 slot)"

    for name in ("compute-pool", "gone"):
        lack = shortage(pools, name, 1) or ""
        assert lack.startswith(f"pool {name} has no agent, so what is submitted to it waits")
        assert lack.endswith(there)
    lack = shortage(pools, "default", 9) or ""
    assert lack.startswith("pool default cannot give a trial 9 slots, ")
    assert lack.endswith(there)


@pytest.mark.parametrize("state", ["draining", "left", "lost"])
def test_an_agent_that_takes_nothing_new_does_not_count(state: str) -> None:
    """Of one that is on its way out, or gone, nobody can be told to wait for its slots."""
    pools = [_pool("default", 2, state=state), _pool("x", 1)]
    lack = shortage(pools, "default", 1) or ""

    assert lack.endswith("; there is x (1 x 1 slot)")
    assert shortage(pools[:1], "default", 1) is None


def test_where_no_agent_is_at_all_nothing_is_said() -> None:
    """The agent of a `rung up` joins a moment later than the first experiment can come."""
    assert shortage([], "default", 1) is None
    assert shortage([_pool("default")], "default", 1) is None
