"""A Transformers trial killed at any step and started again is bit for bit the same."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frontdoors.fuse import before, out
from frontdoors.trials import killed_again_and_again, needs, parent

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS: dict[str, Any] = {
    "length": 2,
    "time_metric": "epochs",
    "seed": 5,
    "config": {
        "searcher": {"metric": "eval_loss", "smaller_is_better": True},
        "scheduling_unit": 100,
        "min_checkpoint_period": {"batches": 2},
        "checkpoint_policy": "none",
    },
}
STEPS = 12
"""Two epochs of six steps."""
EVERYWHERE = [before(1), before(4), before(6), before(7), before(10), before(12), out(2)]
"""In the first step, within and at the end of an epoch, behind it, and on the way out."""
ACCUMULATED = [before(2), before(3), before(4), before(6)]
"""The same, of two epochs of three."""


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Transformers."""
    with parent("frontdoors.transformers_trial", {}) as started:
        yield started


def test_no_kill_shows(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Curves, weights, optimizer and generators are the same."""
    outcome = killed_again_and_again(process, tmp_path, FIELDS, EVERYWHERE)
    assert list(outcome["training"]) == list(range(1, STEPS + 1))
    assert list(outcome["validation"]) == [6, 12]


def test_no_kill_shows_in_what_the_trainer_averages(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """The same with means over several steps, accumulation, and worker processes."""
    outcome = killed_again_and_again(
        process, tmp_path, FIELDS, ACCUMULATED, accumulate=2, logging=5, workers=1
    )
    assert list(outcome["training"]) == [5]
