"""Metrics of many batches, and of all ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rung.core import DistributedContext
from rung.core.errors import ReportRefused
from rung.core.ipc.environment import Place
from rung.training.errors import NotResumable
from support.framework_trials import needs
from support.ranked import on_agents, ranked

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]
DATA = [np.linspace(0, 1, size, dtype="float64") ** 3 for size in (5, 5, 5, 2)]


def test_any_number_of_ranks_comes_to_the_same_bits(part: Part) -> None:
    """Batches are dealt out, and weighed by their records, the uneven last one too."""
    evaluated = part("metrics").evaluated

    def mean(batch: Any) -> dict[str, Any]:
        return {"mean": batch.mean()}

    alone = evaluated(DATA, mean, DistributedContext(Place()))
    assert alone["mean"] == pytest.approx(np.concatenate(DATA).mean())
    for size in (2, 3):
        found = ranked(on_agents(size), lambda ranks: evaluated(DATA, mean, ranks))
        assert found == [alone] * size


def test_batches_that_differ_by_rank_are_refused(part: Part) -> None:
    """As `.shard(…)` gives them: each rank would leave out some of its own."""

    def work(ranks: DistributedContext) -> None:
        part("metrics").evaluated(DATA[ranks.rank :: ranks.size], lambda _: {"mean": 1.0}, ranks)

    with pytest.raises(NotResumable, match=r"validation batches .* Leave \.shard"):
        ranked(on_agents(2), work)


def test_parts_of_batches_weigh_as_much_as_they_hold(part: Part) -> None:
    """Two ranks' parts make the mean over the batch, and then over the batches."""
    means = part("metrics").Means

    def report(ranks: DistributedContext) -> dict[str, float]:
        own = means()
        own.add({"loss": [1.0, 4.0][ranks.rank]}, [2 / 3, 1 / 3][ranks.rank])
        own.add({"loss": 6.0}, 0.5)
        kept = means()
        kept.load(own.state())
        found: dict[str, float] = kept.take(ranks)
        return found

    chief, other = ranked(on_agents(2), report)
    assert chief == {"loss": pytest.approx((2.0 + 6.0) / 2)}
    assert other == {}


def test_tensors_and_metrics_are_numbers(tf: Any, part: Part) -> None:
    """Tensors, variables, Keras' metrics, NumPy's numbers; several elements are none."""
    numbers = part("metrics").numbers
    total = tf.keras.metrics.Sum()
    total.update_state([1.0, 2.0])
    given = {"a": tf.constant(1.5), "b": tf.Variable(2), "c": total, "d": np.float32(4), "e": 5}
    assert numbers(given) == {"a": 1.5, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
    with pytest.raises(ReportRefused, match="'loss'"):
        numbers({"loss": tf.ones(3)})
