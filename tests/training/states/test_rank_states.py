"""What ranks keep, and what they take up of it."""

from typing import Any

import pytest

from rung.core import DistributedContext
from rung.training.states.rank_states import Share, gathered, new_generators, share_of
from support.ranked import on_agents, ranked


def _kept(slots: int) -> dict[str, Any]:
    def keep(ranks: DistributedContext) -> dict[str, Any]:
        return gathered(ranks, {"of": ranks.rank})

    chief: dict[str, Any] = ranked(on_agents(slots), keep)[0]
    return chief


def _shares(kept: dict[str, Any], slots: int) -> list[Share]:
    return ranked(on_agents(slots), lambda ranks: share_of(ranks, kept))


def test_one_process_keeps_its_own_and_nothing_else() -> None:
    """Files of one slot are what they were."""
    assert _kept(1) == {"of": 0}
    assert _shares({"of": 0}, 1) == [Share({"of": 0}, [{"of": 0}])]


def test_as_many_ranks_take_up_their_own() -> None:
    """Each its own, and only that."""
    assert _shares(_kept(3), 3) == [Share({"of": r}, [{"of": r}]) for r in range(3)]


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 1), (1, 2), (2, 4)])
def test_on_another_number_the_chief_takes_up_all(before: int, after: int) -> None:
    """The chief resumes with the sums of all ranks; the others start at zero."""
    chief, *others = _shares(_kept(before), after)
    assert chief.own is not None
    assert chief.own["of"] == 0
    assert [each["of"] for each in chief.to_add] == list(range(before))
    assert others == [Share(None, [])] * (after - 1)


def test_new_generators_differ_by_rank_and_step() -> None:
    """The chief has its own."""

    def drawn(batches: int) -> list[Any]:
        return ranked(on_agents(3), lambda ranks: new_generators(ranks, 5, batches))

    chief, *others = drawn(0)
    assert chief is None
    states = [each.python for each in (*others, *drawn(4)[1:])]
    assert len(set(states)) == 4
