"""What changes around a Transformers training goes on in a run that resumes, or is refused."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.framework_trials import (
    configured,
    killed_again_and_again,
    killed_behind_its_change,
    needs,
    parent,
    refused_for_its_change,
)
from support.frameworks import changing, transformers_fields
from support.frameworks.changing import CHANGED_AT, KEPT, LENGTH, REFUSED, names
from support.fuse import before
from support.soak import shortened

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS = configured(
    transformers_fields.FIELDS | {"length": 3},
    min_checkpoint_period={"batches": 1},
    searcher={"metric": "loss", "smaller_is_better": True},
)
BEHIND = range(CHANGED_AT + 1, LENGTH)
SHORT = ["average", "of_callback", "of_trainer", "added", "swapped", "harder"]
"""What is of the trainer; the rest is the same for `rung.torch`, whose tests have all of it."""
AHEAD = [changing.harder, changing.transform]
"""Changes of the data set, whose batches this trainer fetches ahead."""
OTHERS = [*AHEAD, changing.group, changing.weights]
SAID = {
    "layer": "model.net.body.2 is a Identity now, and was a Dropout",
    "hook": "model.net.head.forward_hooks are hook.<locals>.<lambda> now, and were none",
    "gradients": "model.net.head.weight.backward_hooks are gradients.<locals>.<lambda> now",
    "nameless": "model.net.curve is the function nameless.<locals>.<lambda> now, and was",
    "optimizer": "model.net.own is a SGD whose state is in no checkpoint",
    "added": "callbacks of the trainer: ",
    "swapped": "optimizer of the trainer: SGD now, and AcceleratedOptimizer at the start",
    "harder": "Records.hardness of the data set has changed within an epoch",
    "transform": "Records.transform.strength of the data set has changed within an epoch",
}


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Transformers."""
    with parent("support.frameworks.transformers_changes", {}) as started:
        yield started


@pytest.mark.parametrize("change", shortened(names(it for it in KEPT if it not in OTHERS), SHORT))
def test_a_change_in_training_outlives_a_kill(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Bit for bit the training that is not killed, at a step that is drawn, behind the change."""
    killed_behind_its_change(process, tmp_path, FIELDS, change, BEHIND)


@pytest.mark.parametrize("change", names(AHEAD))
def test_data_that_change_where_an_epoch_begins_outlive_a_kill(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Within that epoch, and behind it."""
    moments = [before(6), before(8)]
    killed_again_and_again(process, tmp_path, FIELDS, moments, change=change, at_epoch=True)


@pytest.mark.parametrize("change", shortened(names((*REFUSED, *AHEAD)), SHORT))
def test_a_change_that_a_kill_would_undo_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """By its name, at the first checkpoint that would not have it."""
    refused_for_its_change(process, tmp_path, FIELDS, change, said=SAID[change], step=CHANGED_AT)
