"""A Lightning trial killed at any step and started again is bit for bit the one never killed."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from frontdoors.trials import killed_everywhere, needs

pytestmark = [needs("lightning"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS: dict[str, Any] = {
    "length": 2,
    "time_metric": "epochs",
    "seed": 5,
    "config": {
        "searcher": {"metric": "val_loss", "smaller_is_better": True},
        "scheduling_unit": 1,
        "min_checkpoint_period": {"batches": 2},
        "checkpoint_policy": "none",
    },
}
STEPS = 12
"""Two epochs of six batches."""


def test_no_kill_shows(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Curves, weights, optimizer, generators, and Lightning's own means are the same."""
    outcome = killed_everywhere(process, tmp_path, FIELDS, range(1, 2 * STEPS, 2))
    assert list(outcome["training"]) == list(range(1, STEPS + 1))
    assert list(outcome["validation"]) == [6, 12]


def test_no_kill_shows_with_validations_within_epochs_and_accumulation(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """The same where a checkpoint follows a validation, or lies between steps."""
    outcome = killed_everywhere(
        process, tmp_path, FIELDS, range(1, 2 * STEPS, 2), validate=4, accumulate=2
    )
    assert list(outcome["validation"]) == [4, 10, 12]
