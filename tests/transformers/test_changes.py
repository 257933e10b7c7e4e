"""What changes around a Transformers training goes on in a run that resumes, or is refused."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung.core.ipc.protocol import Stored
from support.framework_trials import (
    configured,
    killed_again_and_again,
    killed_behind_its_change,
    needs,
    parent,
    refused_for_its_change,
    trial,
)
from support.frameworks import changing, transformers_changes, transformers_fields
from support.frameworks.changing import CHANGED_AT, KEPT, LENGTH, REFUSED, names
from support.fuse import before
from support.soak import shortened

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS = configured(
    transformers_fields.FIELDS | {"length": 3},
    min_checkpoint_period={"batches": 1},
    searcher={"metric": "eval_hard_loss", "smaller_is_better": True},
)
BEHIND = range(CHANGED_AT + 1, LENGTH)
OF_LIBRARY = names(transformers_changes.KEPT)
SHORT = ["average", "of_callback", "of_trainer", "added", "swapped", "harder"]
"""What is of the trainer; the rest is the same for `rung.torch`, whose tests have all of it."""
AHEAD = [changing.harder, changing.transform]
"""Changes of the data set, whose batches this trainer fetches ahead."""
MORE = ["collator", "generator", "metrics"]
"""Changes that are refused, of what only this library has."""
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
    "collator": "trainer.data_collator.scale has changed within an epoch",
    "generator": "model.drawing is a Generator of MT19937 now, and was a Generator of PCG64",
    "metrics": "compute_metrics of the trainer: function now, and NoneType at the start",
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


@pytest.mark.parametrize("change", [it for it in OF_LIBRARY if it != "collator"])
def test_a_change_of_what_the_trainer_was_given_outlives_a_kill(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Killed before, at and behind it: the loss, validation data, generators of the model."""
    moments = [before(4), before(CHANGED_AT), before(CHANGED_AT + 2)]
    killed_again_and_again(process, tmp_path, FIELDS, moments, change=change)


def test_a_stream_that_something_changes_within_an_epoch_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """By its name; what it changes in itself is not refused."""
    said = "Passing.records.hardness of the data set has changed within an epoch"
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(change="harder", stream=True) == 1
        assert said in runs.refusal()
        assert runs.agent.of(Stored)[-1].steps_completed == CHANGED_AT - 1


@pytest.mark.parametrize("change", [*names(AHEAD), "collator"])
def test_data_that_change_where_an_epoch_begins_outlive_a_kill(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Within that epoch, and behind it."""
    moments = [before(6), before(8)]
    killed_again_and_again(process, tmp_path, FIELDS, moments, change=change, at_epoch=True)


@pytest.mark.parametrize("change", ["harder", "collator"])
def test_a_stream_that_changes_where_an_epoch_begins_outlives_kills(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Before the change, within its epoch, and behind it; the stream changes itself, too."""
    moments = [before(2), before(5), before(8)]
    found = killed_again_and_again(
        process, tmp_path, FIELDS, moments, change=change, at_epoch=True, stream=True
    )
    assert found["result"]["passes"] == 3


@pytest.mark.parametrize("change", shortened([*names((*REFUSED, *AHEAD)), *MORE], [*SHORT, *MORE]))
def test_a_change_that_a_kill_would_undo_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """By its name, at the first checkpoint that would not have it."""
    refused_for_its_change(process, tmp_path, FIELDS, change, said=SAID[change], step=CHANGED_AT)
