"""A run of TensorFlow logs how many records a step trains."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rung.training.units import InvalidPlan
from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]


def seen(part: Part, batches: list[tuple[int, int]], last: int = 2, **hparams: Any) -> list[str]:
    """Return what is logged of batches, of so many records at a place of an epoch each.

    The epoch's last place is `last`.
    """
    run: Any = SimpleNamespace(
        hparams=hparams, distributed=SimpleNamespace(size=2, is_chief=True, rank=0)
    )
    size = part("batch_size").SeenBatchSize(run)
    with structlog.testing.capture_logs() as logs:
        for records, place in batches:
            size.see(records, place, lambda: place == last)  # noqa: B023 - called at once
    return [each["event"] for each in logs]


@pytest.mark.parametrize("batches", [[(8, 0), (8, 1), (6, 2)], [(6, 2), (8, 0)], [(8, 1), (6, 2)]])
@pytest.mark.parametrize("hparams", [{}, {"global_batch_size": 8}])
def test_it_is_logged_once(
    part: Part, batches: list[tuple[int, int]], hparams: dict[str, int]
) -> None:
    """By a batch that is not an epoch's shorter last one, wherever the run goes on."""
    found = seen(part, batches, **hparams)
    assert found == ["each step trains 8 records on 2 slots together, 4 on each"]


@pytest.mark.parametrize("batches", [[(8, 0)], [(6, 2), (8, 0)], [(8, 1), (8, 2)]])
@pytest.mark.parametrize("wanted", [4, 16])
def test_another_size_than_the_hyperparameters_is_refused(
    part: Part, batches: list[tuple[int, int]], wanted: int
) -> None:
    """With both numbers."""
    message = rf"size of a batch of the data is 8, .*global_batch_size is {wanted}"
    with pytest.raises(InvalidPlan, match=message):
        seen(part, batches, global_batch_size=wanted)


def test_data_that_fill_no_batch_are_trained(part: Part) -> None:
    """An epoch of a single batch, which has what there is."""
    found = seen(part, [(6, 0), (6, 0)], last=0, global_batch_size=8)
    assert found == ["each step trains 6 records on 2 slots together, 3 on each"]
