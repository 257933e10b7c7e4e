"""Who yields to something more important, and where a trial goes on that yielded or was moved."""

import pytest

from rung.scheduler.policies.planning import AT_ONCE_MAX
from rung.scheduler.processor import CLAIMS_MAX
from support.scheduler.scenario import (
    Pool,
    drain,
    joined,
    left,
    lost,
    move,
    released,
    requested,
    withdrawn,
)


@pytest.fixture
def full() -> Pool:
    """Return a pool of two agents with two slots each, all given to trials of no importance."""
    pool = Pool()
    pool.tell(joined("a", 2), joined("b", 2))
    pool.tell(*(requested(f"low.{index}.1", priority=60 + index) for index in range(4)))
    return pool


def test_the_least_important_yields(full: Pool) -> None:
    """One slot for something important is taken from the least important trial, once."""
    assert full.then(requested("high.0.1", priority=1)) == ["signaled low.3.1 preempt: b"]
    assert full.then(left("nobody"), requested("high.0.1", priority=1)) == []
    assert full.then(released("low.3.1", "b")) == ["granted high.0.1: b[1]"]


def test_what_is_killed_makes_room_in_the_same_decision() -> None:
    """The parts of a gang that failed leave: what waits for the rest gets it now, not later."""
    pool = Pool()
    pool.tell(joined("a", 2), joined("b", 2), joined("c", 2))
    pool.tell(requested("low.0.1", priority=60), requested("gang.0.1", 4, priority=1))
    assert pool.then(requested("wide.0.1", 6, priority=1)) == []
    assert pool.then(released("gang.0.1", "b", failed="rank 2: no memory")) == [
        "signaled gang.0.1 kill: c",
        "signaled low.0.1 preempt: a",
    ]


def test_equals_do_not_yield(full: Pool) -> None:
    """Whatever is as important as what waits goes on."""
    assert full.then(requested("late.0.1", priority=63)) == []
    assert full.then(requested("later.0.1", priority=62)) == ["signaled low.3.1 preempt: b"]


def test_of_equals_the_newest_yields() -> None:
    """Among trials of one priority the one yields that arrived last."""
    pool = Pool()
    pool.tell(joined("a", 2), requested("low.0.1"), requested("low.1.1"))
    assert pool.then(requested("high.0.1", priority=1)) == ["signaled low.1.1 preempt: a"]


def test_a_gang_takes_what_it_needs_and_no_more(full: Pool) -> None:
    """All slots of one agent are taken from those who hold them; the others go on."""
    assert full.then(requested("high.0.1", slots=2, priority=1)) == [
        "signaled low.3.1 preempt: b",
        "signaled low.2.1 preempt: b",
    ]
    assert full.then(released("low.3.1", "b")) == []
    assert full.then(released("low.2.1", "b")) == ["granted high.0.1: b[0,1]"]


def test_what_cannot_be_had_is_not_asked_for(full: Pool) -> None:
    """Nobody yields where the more important trial would not fit even then."""
    full.tell(released("low.0.1", "a"), requested("fixed.0.1", priority=1))
    assert full.then(requested("high.0.1", slots=4, priority=2)) == []


def test_several_that_wait_are_served_at_once(full: Pool) -> None:
    """Each of those that wait gets room, without waiting for the one before it to start."""
    full.tell(requested("high.0.1", priority=1))
    assert full.then(requested("high.1.1", priority=1)) == ["signaled low.2.1 preempt: b"]


def test_who_leaves_already_makes_room(full: Pool) -> None:
    """A trial that was withdrawn will give its slot back: nobody else need yield."""
    full.tell(withdrawn("low.0.1"))
    assert full.then(requested("high.0.1", priority=1)) == []
    assert full.then(lost("b")) == [
        "lost low.2.1: agent b was silent for 31.2 s",
        "lost low.3.1: agent b was silent for 31.2 s",
    ]


def test_a_trial_that_yielded_keeps_its_place(full: Pool) -> None:
    """Its next run goes before those of its priority that came after it."""
    full.tell(requested("other.0.1", priority=63), requested("high.0.1", priority=1))
    full.tell(released("low.3.1", "b"), requested("low.3.2", priority=63))
    assert full.then(released("high.0.1", "b")) == ["granted low.3.2: b[1]"]


def test_a_withdrawn_trial_keeps_no_place(full: Pool) -> None:
    """A trial that yielded and was withdrawn on top comes back at the end."""
    full.tell(requested("other.0.1", priority=63), requested("high.0.1", priority=1))
    full.tell(withdrawn("low.3.1", "kill"), released("low.3.1", "b"))
    full.tell(requested("low.3.2", priority=63))
    assert full.then(released("high.0.1", "b")) == ["granted other.0.1: b[1]"]


def test_a_moved_trial_goes_elsewhere() -> None:
    """It yields, and its next run is granted on another agent though its old slot is idle."""
    pool = Pool()
    pool.tell(joined("a", 2), joined("b", 2), requested("x.0.1"))
    assert pool.then(move("x.0")) == ["signaled x.0.1 preempt: a"]
    assert pool.then(move("x.0")) == []
    assert pool.then(released("x.0.1", "a"), requested("x.0.2")) == ["granted x.0.2: b[0]"]
    assert pool.then(released("x.0.2", "b"), requested("x.0.3")) == ["granted x.0.3: a[0]"]


def test_a_moved_trial_comes_back_where_nothing_else_exists() -> None:
    """With no other agent that could ever serve it, it goes on where it was."""
    pool = Pool()
    pool.tell(joined("a", 2), joined("b", 1), requested("x.0.1", slots=2), move("x.0"))
    assert pool.then(released("x.0.1", "a"), requested("x.0.2", slots=2)) == [
        "granted x.0.2: a[0,1]"
    ]


def test_a_moved_trial_waits_without_making_others_wait() -> None:
    """While the other agents are full, what came later starts where the trial was."""
    pool = Pool()
    pool.tell(joined("a", 1), joined("b", 1), requested("x.0.1"), requested("y.0.1"))
    pool.tell(move("x.0"), released("x.0.1", "a"))
    assert pool.then(requested("x.0.2")) == []
    assert pool.then(requested("z.0.1")) == ["granted z.0.1: a[0]"]
    assert pool.then(released("y.0.1", "b")) == ["granted x.0.2: b[0]"]


def test_a_trial_is_moved_to_the_agent_named() -> None:
    """It waits for that agent; when the agent goes, it goes where there is room."""
    pool = Pool()
    pool.tell(joined("a", 1), joined("b", 1), joined("c", 1))
    pool.tell(requested("x.0.1"), requested("y.0.1"), move("x.0", "b"))
    assert pool.then(released("x.0.1", "a"), requested("x.0.2")) == []
    assert pool.then(left("b")) == ["lost y.0.1: agent b left", "granted x.0.2: c[0]"]


def test_a_waiting_trial_is_sent_to_an_agent() -> None:
    """A run that waits already goes to the agent that a move names, and blocks nobody."""
    pool = Pool()
    pool.tell(joined("a", 1), joined("b", 1))
    pool.tell(*(requested(f"{name}.0.1") for name in "xyz"))
    assert pool.then(move("z.0", "b"), released("x.0.1", "a")) == []
    assert pool.then(released("y.0.1", "b")) == ["granted z.0.1: b[0]"]


def test_not_all_yield_at_once() -> None:
    """From a number of departures on, nobody else is asked until some of them are over."""
    pool = Pool()
    pool.tell(joined("a", 100), *(requested(f"low.{index}.1") for index in range(100)))
    asked = pool.tell(*(requested(f"high.{index}.1", priority=1) for index in range(100)))
    assert len(asked) == AT_ONCE_MAX
    first = f"low.{99}.1"
    assert pool.then(released(first, "a")) == [
        "granted high.0.1: a[99]",
        f"signaled low.{99 - AT_ONCE_MAX}.1 preempt: a",
    ]


def test_an_agent_is_drained() -> None:
    """What runs on it yields, wherever else it runs, and goes on elsewhere; nothing new comes."""
    pool = Pool()
    pool.tell(joined("a", 1), joined("b", 1), requested("gang.0.1", slots=2), joined("c", 2))
    pool.tell(requested("x.0.1"), requested("x.1.1"))
    assert pool.then(drain("b", incarnation=7)) == []
    assert pool.then(drain("b")) == ["signaled gang.0.1 preempt: a b"]
    assert pool.then(drain("b"), released("gang.0.1", "b"), requested("y.0.1")) == []
    assert pool.then(released("gang.0.1", "a")) == ["granted y.0.1: a[0]"]
    assert pool.then(requested("gang.0.2", slots=2), left("b")) == []
    assert pool.then(released("x.0.1", "c"), released("x.1.1", "c")) == [
        "granted gang.0.2: c[0,1]"
    ]
    assert pool.then(joined("b", 1, incarnation=2), requested("y.1.1")) == ["granted y.1.1: b[0]"]


def test_what_a_drained_agent_took_along_is_lost() -> None:
    """Who did not leave in time is lost with the agent, as ever."""
    pool = Pool()
    pool.tell(joined("a", 1), joined("b", 1), requested("x.0.1"), drain("a"))
    assert pool.then(left("a")) == ["lost x.0.1: agent a left"]
    assert pool.then(requested("x.0.2")) == ["granted x.0.2: b[0]"]


def test_claims_are_bounded() -> None:
    """Trials that are moved and never come back are forgotten, the oldest first."""
    pool = Pool()
    pool.tell(*(move(f"x.{index}", "a") for index in range(CLAIMS_MAX + 5)))
    assert next(iter(pool.state.claims)) == "x.5"
    assert len(pool.state.claims) == CLAIMS_MAX
