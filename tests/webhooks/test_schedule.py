"""When deliveries are tried: in order, not too often, not for ever; over generated courses."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rung.webhooks.schedule import AT_ONCE, Schedule, Waiting
from rung.webhooks.settings import Settings

HOUR_MS = 3_600_000
CHANCE = random.Random(1)  # noqa: S311 - spreads attempts, guards nothing


def schedule_of(*waiting: tuple[str, str]) -> Schedule:
    """Return a schedule with deliveries: each its lane and id."""
    found = Schedule(Settings(), CHANCE)
    for position, (lane, name) in enumerate(waiting):
        assert found.add(lane, Waiting(name, position, 0))
    return found


def test_lanes_go_side_by_side_and_each_in_order() -> None:
    """The next of a lane waits for the one before, also if that failed."""
    it = schedule_of(("a", "a1"), ("a", "a2"), ("b", "b1"))
    first = it.begin(0)
    assert [waiting.delivery_id for _, waiting in first] == ["a1", "b1"]
    assert it.begin(0) == []
    it.succeeded(first[1][0])
    assert it.begin(0) == []
    verdict = it.failed(first[0][0], 0, 0)
    assert not verdict.dead
    (again,) = it.begin(verdict.next_ms)
    assert (again[1].delivery_id, again[1].attempts) == ("a1", 1)
    it.succeeded(again[0])
    assert [waiting.delivery_id for _, waiting in it.begin(verdict.next_ms)] == ["a2"]


def test_an_outage_is_probed_by_one_and_ends_for_all() -> None:
    """A thousand experiments do not knock at once; once one came through all go on."""
    it = schedule_of(*((f"l{i}", f"d{i}") for i in range(1000)))
    now, attempts = 0, 0
    while now < HOUR_MS:
        for lane, _ in it.begin(now):
            attempts += 1
            it.failed(lane, now, 0)
        due = it.due_ms()
        assert due is not None
        now = max(due, now + 1)
    assert attempts < 80
    ((lane, _),) = it.begin(now)
    it.succeeded(lane)
    assert len(it.begin(now)) == AT_ONCE


def test_a_delivery_is_given_up_after_a_day_and_the_next_goes_on() -> None:
    """With some dozen attempts, a fraction of an hour apart."""
    it = schedule_of(("a", "a1"), ("a", "a2"))
    now, attempts = 0, 0
    while True:
        ((lane, waiting),) = it.begin(now)
        assert waiting.delivery_id == "a1"
        attempts += 1
        verdict = it.failed(lane, now, 0)
        if verdict.dead:
            break
        now = max(verdict.next_ms, it.due_ms() or 0)
    assert 20 <= now / HOUR_MS <= 24
    assert 25 <= attempts <= 60
    assert [waiting.delivery_id for _, waiting in it.begin(now + HOUR_MS)] == ["a2"]


def test_retry_after_is_honoured() -> None:
    """For all that waits for the receiver."""
    it = schedule_of(("a", "a1"), ("b", "b1"))
    (a, b) = it.begin(0)
    it.failed(a[0], 0, 60_000)
    it.failed(b[0], 0, 0)
    assert it.begin(59_999) == []
    assert len(it.begin(60_000)) == 1


def test_what_waits_is_not_taken_twice() -> None:
    """A request that was written twice is one delivery."""
    it = schedule_of(("a", "a1"))
    assert not it.add("a", Waiting("a1", 7, 0))
    assert (len(it), it.lowest) == (1, 0)
    it.end("a1")
    it.end("a1")
    assert (len(it), it.lowest, it.due_ms()) == (0, None, None)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40), st.randoms())
def test_whatever_fails_all_is_delivered_once_and_in_order(
    course: list[tuple[int, bool]], chance: random.Random
) -> None:
    """Each lane in the order in which it came; nothing is tried after it ended."""
    it = Schedule(Settings(), random.Random(1))  # noqa: S311 - as above
    wanted: dict[str, list[str]] = {}
    for position, (number, _) in enumerate(course):
        it.add(str(number), Waiting(f"d{position}", position, 0))
        wanted.setdefault(str(number), []).append(f"d{position}")
    told: dict[str, list[str]] = {}
    now = 0
    failing = [fails for _, fails in course]
    while len(it):
        begun = it.begin(now)
        chance.shuffle(begun)
        assert len(begun) <= AT_ONCE
        for lane, waiting in begun:
            if failing and failing.pop():
                it.failed(lane, now, 0)
            else:
                told.setdefault(lane.name, []).append(waiting.delivery_id)
                it.succeeded(lane)
        due = it.due_ms()
        now = max(now, due or 0)
    assert told == wanted
