"""What changes in a Keras training goes on in a run that resumes, or is refused by name."""

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
from support.frameworks import keras_fields
from support.fuse import before
from support.soak import thinned

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS = configured(keras_fields.FIELDS, min_checkpoint_period={"batches": 1})
CHANGED_AT = 5
"""The step before which the trial makes its change."""
STEPS = 9
"""Three epochs of three."""
SAID = {
    "frozen": ".trainable is False, and was True",
    "dropout": ".rate is 0.6, and was 0.4",
    "momentum": ".momentum is 0.5, and was 0.99",
    "of_model": "model.beta is 2.0, and was 1.0",
    "number": "scaled.scale is 2.0, and was 1.0",
    "items": "scaled.steps is ",
    "array": "scaled.table is an array of (2,) (",
    "hidden": "scaled._alpha is 2.0, and was 1.0",
    "tensor": "scaled.center is a Tensor (",
    "attribute": "scaled.knobs is a SimpleNamespace (",
    "members": "scaled.kinds is a TrackedSet (",
    "added": "scaled.bonus is 2.0, and was not there",
    "deleted": "scaled.extra is gone, and was 1.0",
    "data": "level is 0.5, and was 0.0",
    "nested": "scaled.inner.use_bias is False, and was True",
    "activation": ".activation is the function tanh, and was the function relu",
    "regularizer": "scaled.inner.kernel_regularizer is dict of tuple of 'l2', 0.1, and was",
    "clipped": "optimizer.clipnorm is 0.1, and was None",
    "swapped": "optimizer of the model is another object now",
    "hook": ".forward_hooks is 1, and was 0",
    "loaded": "level is 0.5, and was 0.0",
}


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


@pytest.mark.parametrize(
    "change", thinned(["factor", "decays", "average", "record", "flow", "rate", "harder"], 2)
)
def test_a_change_in_training_outlives_a_kill(
    torch: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """Bit for bit the training that is not killed, at a step that is drawn, behind the change."""
    killed_behind_its_change(torch, tmp_path, FIELDS, change, range(CHANGED_AT + 1, STEPS))


def test_validation_data_of_the_callback_go_on_where_they_were(
    torch: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Data with attributes, read within epochs, beside those that `fit` has.

    They draw from NumPy's generator, which on TensorFlow data that are read ahead must not.
    """
    fields = configured(FIELDS, min_validation_period={"batches": 2})
    found = killed_again_and_again(
        torch,
        tmp_path,
        fields,
        [before(step) for step in (3, 5, 6, 8)],
        change=None,
        within=True,
    )
    assert list(found["validation"]) == [2, 3, 4, 6, 8, 9]
    assert all(found["result"]["passes"])


@pytest.mark.parametrize("change", thinned(SAID, 2))
def test_a_change_that_a_kill_would_undo_is_refused(
    torch: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """By its name, at the first checkpoint that would not have it."""
    refused_for_its_change(torch, tmp_path, FIELDS, change, said=SAID[change], step=CHANGED_AT)


@pytest.mark.parametrize("change", thinned(["of_model", "frozen", "nested", "swapped"], 3))
def test_on_tensorflow_it_is_refused_too(
    tensorflow: "subprocess.Popen[str]", tmp_path: Path, change: str
) -> None:
    """By the same names."""
    process = tensorflow
    refused_for_its_change(process, tmp_path, FIELDS, change, said=SAID[change], step=CHANGED_AT)
