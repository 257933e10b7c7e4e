"""Changes around a Lightning training go on in a run that resumes, or are refused by name."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.framework_trials import (
    configured,
    killed_behind_its_change,
    needs,
    parent,
    refused_for_its_change,
)
from support.frameworks import lightning_fields
from support.frameworks.changing import CHANGED_AT, KEPT, LENGTH, REFUSED, names
from support.soak import shortened

pytestmark = [needs("lightning"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS = configured(
    lightning_fields.FIELDS | {"length": 3},
    min_checkpoint_period={"batches": 1},
    searcher={"metric": "loss", "smaller_is_better": True},
)
BEHIND = range(CHANGED_AT + 1, LENGTH)
SHORT = ["group", "weights", "of_callback", "of_trainer", "hook", "added", "swapped"]
"""What is of the trainer; the rest is the same for `rung.torch`, whose tests have all of it."""
OWN = ["validated", "collated", "drawn_weights"]
OWN_REFUSED = ["rescheduled"]
"""Lightning's alone."""
SAID = {
    "layer": "model.net.body.2 is a Identity now, and was a Dropout",
    "hook": "model.net.head.forward_hooks are hook.<locals>.<lambda> now, and were none",
    "gradients": "model.net.head.weight.backward_hooks are gradients.<locals>.<lambda> now",
    "nameless": "model.net.curve is the function nameless.<locals>.<lambda> now, and was",
    "optimizer": "model.net.own is a SGD whose state is in no checkpoint",
    "added": "callbacks of the trainer: Changing, Burning, Changing now, and Changing, Burning",
    "swapped": "optimizers of the trainer: SGD now, and SGD at the start",
    "rescheduled": "learning rate schedules of the trainer: CosineAnnealingLR now, and StepLR at",
}


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Lightning."""
    with parent("support.frameworks.lightning_changes", {}) as started:
        yield started


@pytest.mark.parametrize("change", [*shortened(names(KEPT), SHORT), *OWN])
def test_a_change_in_training_outlives_a_kill(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Bit for bit the training that is not killed, at a step that is drawn, behind the change."""
    killed_behind_its_change(process, tmp_path, FIELDS, change, BEHIND)


@pytest.mark.parametrize("change", [*shortened(names(REFUSED), SHORT), *OWN_REFUSED])
def test_a_change_that_a_kill_would_undo_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """By its name, at the first checkpoint that would not have it."""
    refused_for_its_change(process, tmp_path, FIELDS, change, said=SAID[change], step=CHANGED_AT)
