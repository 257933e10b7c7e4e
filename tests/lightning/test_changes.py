"""Changes around a Lightning training go on in a run that resumes, or are refused by name."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung.core.ipc.protocol import Stored
from support.framework_trials import killed_again_and_again, needs, parent, trial
from support.frameworks import lightning_fields
from support.frameworks.changing import CHANGED_AT, KEPT, LENGTH, REFUSED
from support.fuse import before

pytestmark = [needs("lightning"), pytest.mark.e2e, pytest.mark.timeout(300)]
CONFIG = lightning_fields.FIELDS["config"] | {
    "min_checkpoint_period": {"batches": 1},
    "searcher": {"metric": "loss", "smaller_is_better": True},
}
FIELDS = lightning_fields.FIELDS | {"length": 3, "config": CONFIG}
SAID = {
    "layer": "model.net.body.2 is a Identity now, and was a Dropout",
    "hook": "model.net.head.forward_hooks are hook.<locals>.<lambda> now, and were none",
    "gradients": "model.net.head.weight.backward_hooks are gradients.<locals>.<lambda> now",
    "nameless": "model.net.curve is the function nameless.<locals>.<lambda> now, and was",
    "optimizer": "model.net.own is a SGD whose state is in no checkpoint",
    "added": "callbacks of the trainer: Changing, Burning, Changing now, and Changing, Burning",
    "swapped": "optimizers of the trainer: SGD now, and SGD at the start",
}


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Lightning."""
    with parent("support.frameworks.lightning_changes", {}) as started:
        yield started


@pytest.mark.parametrize("change", [each.__name__ for each in KEPT])
def test_a_change_in_training_outlives_a_kill(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Bit for bit the training that is not killed, at a step that is drawn, behind the change."""
    step = random.Random(change).randrange(CHANGED_AT + 1, LENGTH)  # noqa: S311 - a test's own
    killed_again_and_again(process, tmp_path, FIELDS, [before(step)], change=change)


@pytest.mark.parametrize("change", [each.__name__ for each in REFUSED])
def test_a_change_that_a_kill_would_undo_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """By its name, at the first checkpoint that would not have it."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(change=change) == 1
        assert SAID[change] in runs.refusal()
        assert [it.steps_completed for it in runs.agent.of(Stored)][-1] == CHANGED_AT - 1
