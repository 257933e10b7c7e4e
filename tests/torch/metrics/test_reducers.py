"""Metrics that are no mean of batches."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
import torch

from rung import core
from rung import torch as rt
from rung.core.ipc.environment import Place
from rung.core.ipc.protocol import Stored
from rung.torch.metrics.reducers import Collected, OfEachRank, Reducers
from support.trials.gpu import on_gpu
from support.trials.plain import INPUTS, PlainTrial
from support.trials.story import CONFIG, finish

from ..conftest import Start  # noqa: TID252 - of the folder above


def spread(values: list[torch.Tensor]) -> torch.Tensor:
    """Return how far apart all inputs are."""
    together = torch.cat(values)
    return together.max() - together.min()


class Spread(PlainTrial):
    """Reports how far apart its inputs are, over all batches of a report, and of a validation."""

    def __init__(self, context: rt.TrialContext) -> None:
        super().__init__(context)
        self.seen: list[torch.Tensor] = []
        self.spread = context.wrap_reducer(spread, name="spread")
        self.counts = context.wrap_reducer(
            lambda values: {"batches seen": len(values)}, for_validation=False
        )

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Fit a line."""
        self.seen.append(batch[0])
        self.spread.update(batch[0])
        self.counts.update((batch_idx, {"inputs": batch[0]}))
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the error."""
        self.spread.update(batch[0])
        return super().evaluate_batch(batch)


def test_a_metric_is_made_of_all_batches(start: Start) -> None:
    """Of those since the last report, and of a validation; neither sees the other's."""
    agent, context = start(config=CONFIG, length=5)
    trial = Spread(context)
    rt.Trainer(trial, context).fit(step_zero_validation=True)
    finish(agent, context)
    whole = pytest.approx(float(INPUTS.max() - INPUTS.min()))
    assert [metrics["spread"] for _, metrics in agent.reports("validation")] == [whole, whole]
    told = [metrics for _, metrics in agent.reports("training")]
    assert [metrics["batches seen"] for metrics in told] == [2, 2, 1]
    parts = [trial.seen[begin : begin + 2] for begin in (0, 2, 4)]
    assert [metrics["spread"] for metrics in told] == [float(spread(part)) for part in parts]
    assert "batches seen" not in agent.reports("validation")[0][1]


def test_what_was_collected_survives_in_a_checkpoint(start: Start) -> None:
    """A run that goes on in the middle of a report reports what the unbroken one does."""
    config = CONFIG | {"scheduling_unit": 4}
    agent, context = start(config=config, length=4)
    rt.Trainer(Spread(context), context).fit()
    finish(agent, context)
    unbroken = agent.reports("training")

    class Leaving(Spread):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                agent.preempt()
                while not context.core.preempt.should_preempt(auto_ack=False):
                    pass
            return super().train_batch(batch, epoch_idx, batch_idx)

    agent, context = start(config=config, length=4)
    rt.Trainer(Leaving(context), context).fit()
    finish(agent, context)
    [stored] = [message.checkpoint_id for message in agent.of(Stored)]
    agent.spec = msgspec.structs.replace(agent.spec, run=2, restore=[stored])
    with rt.init() as again:
        rt.Trainer(Spread(again), again).fit()
    agent.wait_for_end(2)
    assert agent.reports("training") == unbroken


class Largest(rt.MetricReducer):
    """The largest value of all, without a state."""

    def __init__(self) -> None:
        self.largest: float | None = None

    def reset(self) -> None:
        """Forget it."""
        self.largest = None

    def per_slot_reduce(self) -> float | None:
        """Return it."""
        return self.largest

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the largest of all."""
        return max(each for each in per_slot_metrics if each is not None)


def test_a_reducer_of_ones_own(start: Start) -> None:
    """It works as a function does; that no checkpoint holds it is told."""

    class Own(PlainTrial):
        def __init__(self, context: rt.TrialContext) -> None:
            super().__init__(context)
            self.largest = context.wrap_reducer(Largest(), name="largest")

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.largest.largest = float(batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
            self.largest.largest = 7.0
            return super().evaluate_batch(batch)

    agent, context = start(config=CONFIG, length=3)
    with structlog.testing.capture_logs() as logs:
        trial = Own(context)
    assert "Largest has no state_dict" in logs[0]["event"]
    rt.Trainer(trial, context).fit()
    finish(agent, context)
    assert [metrics["largest"] for _, metrics in agent.reports("training")] == [1.0, 2.0]
    assert agent.reports("validation")[0][1]["largest"] == 7.0


class Ranks:
    """Three ranks, all of which have the same."""

    rank, size, is_chief = 0, 3, True

    def allgather(self, stuff: Any) -> list[Any]:
        """Return it thrice."""
        return [stuff] * 3


def test_values_of_several_ranks() -> None:
    """Each takes its own back; of another number, the first takes all."""
    several: Any = Ranks()
    collected = Collected(sum, several)
    collected.update(torch.tensor(2.0))
    state = collected.state_dict()
    again = Collected(sum, several)
    again.load_state_dict(state)
    assert again.per_slot_reduce() == [2.0]
    fewer: Any = type("Fewer", (Ranks,), {"size": 2})()
    chief = Collected(sum, fewer)
    chief.load_state_dict(state)
    assert chief.per_slot_reduce() == [2.0, 2.0, 2.0]
    fewer.is_chief = False
    other = Collected(sum, fewer)
    other.load_state_dict(state)
    assert other.per_slot_reduce() == []


class Counter(Largest):
    """The same with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return it."""
        return {"largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.largest = state["largest"]


def of_rank(rank: int, size: int, states: list[Any] | None = None) -> tuple[Counter, OfEachRank]:
    """Return a reducer of a rank, which the others answer with their states, and what is kept."""

    def allgather(_own: Any) -> list[Any]:
        assert states is not None
        return states

    reducer = Counter()
    reducer.largest = float(rank)
    ranks: Any = SimpleNamespace(rank=rank, size=size, is_chief=rank == 0, allgather=allgather)
    return reducer, OfEachRank(reducer, ranks)


def test_each_rank_takes_up_its_own_state() -> None:
    """Of fewer ranks now, nobody has what the others had, which is told; of more, the new begin.

    What one process stored is its own state as it is.
    """
    states: list[Any] = [{"largest": 7.0}, {"largest": 8.0}]
    stored = of_rank(1, 2, states)[1].state_dict()
    alone = of_rank(0, 1)[1].state_dict()
    assert alone == {"largest": 0.0}
    found = []
    with structlog.testing.capture_logs() as logs:
        for state, size in ((stored, 2), (stored, 3), (alone, 2)):
            for rank in range(size):
                reducer, kept = of_rank(rank, size)
                kept.load_state_dict(state)
                found.append(reducer.largest)
        assert logs == []
        reducer, kept = of_rank(0, 1)
        kept.load_state_dict(stored)
    assert found == [7.0, 8.0, 7.0, 8.0, 2.0, 0.0, 1.0]
    assert reducer.largest == 7.0
    assert "Counter was on 2 slots and is on 1 now" in logs[0]["event"]


def test_a_reducer_of_ones_own_with_a_state_is_kept(start: Start) -> None:
    """A checkpoint holds it; one without a state is in none."""
    _, context = start(config=CONFIG)
    counter = context.wrap_reducer(Counter(), name="largest")
    context.wrap_reducer(Largest(), name="other", for_training=False)
    assert list(context.kept) == ["reducer 1"]
    context.kept["reducer 1"].load_state_dict({"largest": 3.0})
    assert counter.largest == 3.0


def test_what_does_not_count_is_not_collected(start: Start) -> None:
    """Neither by a function nor by a reducer of one's own; afterwards all is as before."""
    _, context = start(config=CONFIG)

    class Own(Largest):
        def update(self, value: float) -> None:
            self.largest = value

    total = context.wrap_reducer(sum, name="total")
    own = context.wrap_reducer(Own(), name="largest", for_training=False)
    context.wrap_reducer(own, name="again", for_training=False)
    for counts in (True, False):
        with context.reducers.paused(when=not counts):
            total.update(1)
            own.update(1.0 if counts else 5.0)
    assert context.reducers.reduced(training=False) == {"total": 1, "largest": 1.0, "again": 1.0}
    own.update(2.0)
    assert own.largest == 2.0
    assert vars(own) == {"largest": 2.0}


def test_what_has_no_place_is_refused(start: Start) -> None:
    """A name that is taken; a value without a name."""
    agent, context = start(config=CONFIG, length=1)
    trial = PlainTrial(context)
    context.wrap_reducer(sum, name="total")
    with pytest.raises(rt.InvalidPlan, match="'total'"):
        context.wrap_reducer(sum, name="total")
    context.wrap_reducer(len).update(1)
    with pytest.raises(rt.InvalidPlan, match="give it a name"):
        rt.Trainer(trial, context).fit()
    finish(agent, context)


def test_what_a_checkpoint_held_is_where_the_rest_is() -> None:
    """A reducer gets all on the CPU, whether or not its trial was resumed on the way."""
    found: list[type] = []

    def reduce(values: list[torch.Tensor]) -> float:
        found.extend(type(value) for value in values)
        return float(sum(values))

    ranks = core.DistributedContext(Place())
    before, after = Reducers(ranks), Reducers(ranks)
    first, second = (
        each.wrap(reduce, "sum", training=True, validation=True) for each in (before, after)
    )
    first.update(on_gpu(1.0))
    second.load_state_dict(first.state_dict())
    second.update(on_gpu(2.0))
    assert after.reduced(training=True) == {"sum": 3.0}
    assert found == [torch.Tensor, torch.Tensor]
