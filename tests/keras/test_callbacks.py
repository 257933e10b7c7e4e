"""A Keras trial goes on with what its callbacks have done, and what they keep; or is refused."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rung.core.ipc.protocol import Stored
from support.framework_trials import killed_again_and_again, needs, parent, trial
from support.fuse import after, before, out
from support.soak import thinned

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS: dict[str, Any] = {
    "length": 4,
    "time_metric": "epochs",
    "seed": 5,
    "config": {
        "searcher": {"metric": "val_loss", "smaller_is_better": True},
        "scheduling_unit": 1,
        "min_checkpoint_period": {"batches": 1},
        "checkpoint_policy": "none",
    },
}
STEPS = 12
"""Four epochs of three."""
CALLBACKS = ["rate", "plateau", "best", "saved", "wild"]


@pytest.fixture(scope="module", params=["torch", "tensorflow"])
def process(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    """A parent with Keras on a backend."""
    with parent("support.frameworks.keras_callbacks", {"KERAS_BACKEND": request.param}) as started:
        yield started


def test_a_rate_that_is_set_as_an_epoch_begins_is_set_once(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Also where the epoch goes on in its middle, and then behind its end."""
    moments = [before(5), before(6), before(7)]
    found = killed_again_and_again(process, tmp_path, FIELDS, moments, callbacks=["rate"])
    assert found["result"]["rate"] == pytest.approx(0.05 * 0.9**4)
    assert found["result"]["epochs"] == [0, 1, 2, 3]


def test_patience_does_not_begin_anew(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """A trial stops where it would have, and stays stopped."""
    moments = [before(5), before(8), out(3)]
    found = killed_again_and_again(process, tmp_path, FIELDS, moments, callbacks=["early"])
    assert found["result"]["epochs"] == [0, 1, 2]


@pytest.mark.parametrize("world", thinned(range(3), 3))
def test_whatever_callbacks_do_no_kill_shows(
    process: "subprocess.Popen[str]", tmp_path: Path, world: int
) -> None:
    """Callbacks drawn by a number, killed at steps that are drawn, too."""
    drawing = random.Random(world)  # noqa: S311 - a test's own
    callbacks = drawing.sample(CALLBACKS, drawing.randrange(2, len(CALLBACKS) + 1))
    callbacks = [*dict.fromkeys([*callbacks, "wild"])]
    steps = sorted(drawing.sample(range(1, STEPS + 1), 4))
    moments = [drawing.choice([before, after])(step) for step in steps]
    killed_again_and_again(process, tmp_path, FIELDS, moments, callbacks=callbacks)


def test_a_state_that_cannot_be_kept_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """By its name, before the first batch."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(callbacks=["iterating"]) == 1
        assert "Iterating.rates is an iterator (cycle)" in runs.refusal()
        assert runs.agent.reports("training") == []


def test_a_layer_that_is_frozen_in_training_is_refused_at_the_checkpoint(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """By its name; the checkpoints before it are there."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(callbacks=["freezing"]) == 1
        assert ".trainable is False, and was True" in runs.refusal()
        assert [it.steps_completed for it in runs.agent.of(Stored)][-1] == STEPS // 4
