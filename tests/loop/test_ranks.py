"""What ranks keep, and what they take up of it."""

from typing import Any

import pytest
import torch

from core.test_distributed import on_agents, ranked
from rung.core.distributed import DistributedContext
from rung.loop.ranks import Share, gathered, share_of
from training.gpu import on_gpu


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
    """The sums of all ranks go on with the chief; the others begin anew."""
    chief, *others = _shares(_kept(before), after)
    assert chief.own is not None
    assert chief.own["of"] == 0
    assert [each["of"] for each in chief.to_add] == list(range(before))
    assert others == [Share(None, [])] * (after - 1)


def test_tensors_come_by_way_of_the_cpu() -> None:
    """On the chief there may be no GPU of the sender's number, and no room on it."""

    def keep(ranks: DistributedContext) -> dict[str, Any]:
        return gathered(ranks, {"sums": {"loss": [on_gpu(float(ranks.rank))]}})

    chief: dict[str, Any] = ranked(on_agents(2), keep)[0]
    sums = [each["sums"]["loss"][0] for each in chief["ranks"]]
    assert [(type(each), float(each)) for each in sums] == [(torch.Tensor, 0), (torch.Tensor, 1)]
