"""What changes in a Keras training goes on in a run that resumes, or is refused by name."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rung.core.ipc.protocol import Stored
from support.framework_trials import killed_again_and_again, needs, parent, trial
from support.fuse import before

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS: dict[str, Any] = {
    "length": 3,
    "time_metric": "epochs",
    "seed": 5,
    "config": {
        "searcher": {"metric": "loss", "smaller_is_better": True},
        "scheduling_unit": 1,
        "min_checkpoint_period": {"batches": 1},
        "checkpoint_policy": "none",
    },
}
CHANGED_AT = 5
"""The step before which the trial makes its change."""
LENGTH = 9
SAID = {
    "frozen": ".trainable is False, and was True",
    "dropout": ".rate is 0.6, and was 0.4",
    "momentum": ".momentum is 0.5, and was 0.99",
    "of_model": "model.beta is 2.0, and was 1.0",
    "number": "scaled.scale is 2.0, and was 1.0",
    "items": "scaled.steps is ",
    "array": "scaled.table is an array of (2,) (",
    "nested": "scaled.inner.use_bias is False, and was True",
    "activation": ".activation is the function tanh, and was the function relu",
    "regularizer": "scaled.inner.kernel_regularizer is dict of tuple of 'l2', 0.1, and was",
    "clipped": "optimizer.clipnorm is 0.1, and was None",
    "swapped": "optimizer of the model is another object now",
    "hook": ".forward_hooks is 1, and was 0",
}
ON_TENSORFLOW = ["frozen", "of_model", "nested", "swapped"]


@pytest.fixture(scope="module")
def torch() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Keras on torch."""
    with parent("support.frameworks.keras_changes", {"KERAS_BACKEND": "torch"}) as process:
        yield process


@pytest.fixture(scope="module")
def tensorflow() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Keras on TensorFlow."""
    with parent("support.frameworks.keras_changes", {"KERAS_BACKEND": "tensorflow"}) as process:
        yield process


@pytest.mark.parametrize("change", ["factor", "decays", "average", "record", "flow", "rate"])
def test_a_change_in_training_outlives_a_kill(
    torch: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Bit for bit the training that is not killed, at a step that is drawn, behind the change."""
    step = random.Random(change).randrange(CHANGED_AT + 1, LENGTH)  # noqa: S311 - a test's own
    killed_again_and_again(torch, tmp_path, FIELDS, [before(step)], change=change)


@pytest.mark.parametrize(
    ("backend", "change"),
    [
        *(("torch", change) for change in SAID),
        *(("tensorflow", change) for change in ON_TENSORFLOW),
    ],
)
def test_a_change_that_a_kill_would_undo_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str, change: str
) -> None:
    """By its name, at the first checkpoint that would not have it."""
    with trial(request.getfixturevalue(backend), tmp_path, **FIELDS) as runs:
        assert runs.train(change=change) == 1
        assert SAID[change] in runs.refusal()
        assert [it.steps_completed for it in runs.agent.of(Stored)][-1] == CHANGED_AT - 1
