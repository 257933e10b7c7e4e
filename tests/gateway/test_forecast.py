"""The forecast of a pool: when its searches will have ended, if runs go on as they went so far."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rung.gateway.estimate.forecast import Bracket, Run, Search, forecast


def _never(_rung: int, _result: int) -> float:
    return 0.0


def _search(
    *,
    trials: float = 0,
    lengths: tuple[float, ...] = (10,),
    rests: bool = False,
    going_on: Callable[[int, int], float] = _never,
    runs: tuple[Run, ...] = (),
    concurrent: int = 100,
    **changes: int,
) -> Search:
    """Return a search whose runs start in 2 s, train a unit a second, and leave in 1 s."""
    bracket = Bracket(
        lengths, rests, trials, [0] * len(lengths), [0.0] * (len(lengths) - 1), going_on
    )
    search = Search(1, 1, concurrent, 2.0, 1.0, 1.0, 1.0, [bracket], list(runs))
    return replace(search, **changes)


def test_rounds() -> None:
    """Six runs of 13 s on four slots take two rounds, and on three as well."""
    for slots in (4, 3):
        assert forecast({"a": _search(trials=6)}, slots) == {"a": 26.0}
    assert forecast({"a": _search(trials=6)}, 2) == {"a": 39.0}


def test_no_more_at_once_than_it_may() -> None:
    """`max_concurrent_trials` bounds it where there are more slots."""
    assert forecast({"a": _search(trials=6, concurrent=2)}, 100) == {"a": 39.0}


def test_open_runs() -> None:
    """What runs has its time left; what waits comes next, then what is to be created."""
    running, waiting = Run(0, 0, 4.0, 1.0, holds=True), Run(0, 0, 12.0, 1.0)

    assert forecast({"a": _search(runs=(running,))}, 1) == {"a": 5.0}
    assert forecast({"a": _search(runs=(running, waiting))}, 1) == {"a": 5.0 + 13.0}
    assert forecast({"a": _search(runs=(running, waiting), trials=1)}, 1) == {"a": 31.0}
    assert forecast({"a": _search(runs=(running, waiting))}, 2) == {"a": 13.0}


def test_the_queue() -> None:
    """Runs of others that were requested before come first."""
    first = [Run(0, 0, 12.0, 1.0, requested=1.0)] * 2
    mine = Run(0, 0, 12.0, 1.0, requested=2.0)
    searches = {"mine": _search(runs=(mine,)), "other": _search(runs=tuple(first))}

    assert forecast(searches, 1) == {"mine": 39.0, "other": 26.0}
    assert forecast(searches, 3) == {"mine": 13.0, "other": 13.0}


def test_priority() -> None:
    """What is more important comes first, and lesser runs leave for it and start once more."""
    lesser = _search(runs=(Run(0, 0, 12.0, 1.0, holds=True),), priority=2)
    greater = _search(runs=(Run(0, 0, 12.0, 1.0, requested=9.0),))

    assert forecast({"a": lesser, "b": greater}, 1) == {"b": 13.0, "a": 13.0 + 2.0 + 13.0}


def test_slots_of_a_run() -> None:
    """Runs of several slots wait until there are so many; more than there are is never."""
    assert forecast({"a": _search(trials=2, slots=2)}, 3) == {"a": 26.0}
    assert forecast({"a": _search(trials=2, slots=2)}, 4) == {"a": 13.0}
    assert forecast({"a": _search(trials=2, slots=5)}, 4) == {}


def test_going_on_within_a_run() -> None:
    """Of nine trials three go on to 30 units and one to 90, each in its first run."""
    search = _search(trials=9, lengths=(10, 30, 90), going_on=lambda _rung, _result: 1 / 3)
    found = forecast({"a": search}, 1)["a"]

    assert found == pytest.approx(9 * 3 + 90 + 3 * 20 + 60, rel=0.1)


def test_going_on_in_runs_of_their_own() -> None:
    """Where trials rest at rungs, each one that goes on has another run, once the rung is full."""
    sizes = [9, 3, 1]

    def going_on(rung: int, result: int) -> float:
        return sizes[rung + 1] if result == sizes[rung] else 0

    search = _search(trials=9, lengths=(10, 30, 90), rests=True, going_on=going_on)

    assert forecast({"a": search}, 1) == {"a": (9 + 3 + 1) * 3.0 + 90 + 3 * 20 + 60}
    assert forecast({"a": search}, 100) == {"a": 3 * 3.0 + 90}


def test_one_reaches_the_top() -> None:
    """Where too few trials rest for a promotion, the best is promoted at the end."""
    search = _search(trials=2, lengths=(10, 30, 90), rests=True)

    assert forecast({"a": search}, 2) == {"a": 3 * 3.0 + 90}


def test_nothing_left() -> None:
    """A search without anything to do ends at once; without slots nothing ever does."""
    assert forecast({"a": _search()}, 1) == {"a": 0.0}
    assert forecast({"a": _search(trials=1)}, 0) == {}
    assert forecast({}, 4) == {}


def test_large_searches() -> None:
    """Of 50,000 trials several are simulated as one, to the same result within a percent."""
    third = _search(trials=50_000, lengths=(10, 30), going_on=lambda _rung, _result: 1 / 3)
    work = 50_000 * (13 + 20 / 3)

    assert forecast({"a": third}, 8)["a"] == pytest.approx(work / 8, rel=0.01)


_runs = st.builds(
    Run,
    bracket=st.just(0),
    rung=st.just(0),
    seconds=st.floats(0, 100),
    unit_s=st.floats(0.01, 10),
    holds=st.booleans(),
    requested=st.floats(0, 100),
)


@st.composite
def _searches(draw: st.DrawFn) -> Search:
    lengths = tuple(sorted(draw(st.sets(st.integers(1, 50), min_size=1, max_size=4))))
    share = draw(st.floats(0, 1))
    search = _search(
        trials=draw(st.integers(0, 30)),
        lengths=lengths,
        rests=draw(st.booleans()),
        going_on=lambda _rung, _result: share,
        concurrent=draw(st.integers(1, 20)),
        priority=draw(st.integers(1, 3)),
        slots=draw(st.integers(1, 3)),
    )
    search.runs = draw(st.lists(_runs, max_size=3))
    return search


@given(st.lists(_searches(), max_size=3), st.integers(0, 6))
def test_bounds(searches: list[Search], slots: int) -> None:
    """Each able search ends; no sooner than its longest run, no later than all work on one slot.

    Asked again, the answer is the same, and the searches are as they were.
    """
    named = {f"s{number}": each for number, each in enumerate(searches)}
    before = repr(named)
    found = forecast(named, slots)

    assert found == forecast(named, slots)
    assert repr(named) == before
    assert set(found) == {name for name, each in named.items() if each.slots <= slots}
    for name, left in found.items():
        longest = max((run.seconds for run in named[name].runs), default=0.0)
        assert left >= longest
    most = sum(_work(each) for each in named.values())
    assert all(left <= most + 1e-6 for left in found.values())


def _work(search: Search) -> float:
    """Return the most that a search can take: every trial in full, alone, restarted for others."""
    bracket = search.brackets[0]
    full = bracket.lengths[-1] * 10 + len(bracket.lengths) * 3.0
    runs = sum(run.seconds + full + 3.0 for run in search.runs)
    restarts = 2.0 * 1_000
    return (bracket.to_come + 1) * full + runs + restarts
