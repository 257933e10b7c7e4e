"""Requests that exclude agents: where they go, and that nobody waits for them."""

from msgspec import structs

from rung.events.trial import RunRequested
from support.scheduler.scenario import Pool, joined, move, released, requested


def excluding(name: str, *agents: str, slots: int = 1) -> RunRequested:
    """Return a request for a run that may not go to these agents."""
    return structs.replace(requested(name, slots), excluded=list(agents))


def pool() -> Pool:
    """Return a pool of two agents with a slot each."""
    found = Pool()
    found.tell(joined("a", 1), joined("b", 1))
    return found


def granted(found: Pool, name: str) -> list[str]:
    """Return the agents on which an allocation is."""
    allocation = found.state.allocations.get(name)
    return [] if allocation is None else list(allocation.parts)


def test_a_request_goes_to_another_agent() -> None:
    """Also where the excluded one would be the first choice."""
    found = pool()
    found.tell(excluding("e.0.2", "a"))
    assert granted(found, "e.0.2") == ["b"]


def test_it_waits_where_there_is_no_other_and_others_do_not() -> None:
    """It takes its place once an agent joins that it may go to."""
    found = pool()
    found.tell(excluding("e.0.2", "a", "b"), requested("f.0.1", 1))
    assert granted(found, "e.0.2") == []
    assert granted(found, "f.0.1") == ["a"]

    found.tell(joined("c", 1))
    assert granted(found, "e.0.2") == ["c"]


def test_it_does_not_wait_behind_its_like() -> None:
    """Two runs of one experiment with different exclusions do not hold each other back."""
    found = pool()
    found.tell(excluding("e.0.2", "a", "b"), requested("e.1.1", 1))
    assert granted(found, "e.1.1") == ["a"]


def test_a_moved_trial_keeps_its_exclusions() -> None:
    """What it was moved away from and what it excludes are both avoided."""
    found = pool()
    found.tell(joined("c", 1), requested("e.0.1", 1), move("e.0"))
    assert granted(found, "e.0.1") == ["a"]
    found.tell(released("e.0.1", "a", 1), excluding("e.0.2", "b"))
    assert granted(found, "e.0.2") == ["c"]


def test_a_user_may_move_a_trial_to_an_excluded_agent() -> None:
    """Who names the agent knows what they do."""
    found = pool()
    found.tell(move("e.0", "a"), excluding("e.0.2", "a"))
    assert granted(found, "e.0.2") == ["a"]
