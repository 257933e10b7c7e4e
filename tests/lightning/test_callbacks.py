"""A Lightning trial goes on with what its callbacks have done and keep; or is refused."""

import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.framework_trials import (
    configured,
    killed_again_and_again,
    needs,
    parent,
    trial,
)
from support.frameworks import lightning_fields
from support.soak import thinned

pytestmark = [needs("lightning"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS = configured(lightning_fields.FIELDS | {"length": 4}, min_checkpoint_period={"batches": 1})
STEPS = 12
"""Four epochs of three."""


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Lightning."""
    with parent("support.frameworks.lightning_callbacks", {}) as started:
        yield started


@pytest.mark.parametrize("world", thinned(range(3), 3))
def test_whatever_callbacks_do_no_kill_shows(
    process: "subprocess.Popen[str]", tmp_path: Path, world: int
) -> None:
    """Callbacks in an order that is drawn by a number, killed in steps that are drawn, too."""
    drawing = random.Random(world)  # noqa: S311 - a test's own
    callbacks = drawing.sample(["wild", "early", "best"], 3)[world:] or ["wild"]
    callbacks = [*dict.fromkeys([*callbacks, "wild"])]
    moments = [drawing.randrange(2, 5) for _ in range(3)]  # each run's own second batch, or so
    killed_again_and_again(process, tmp_path, FIELDS, moments, callbacks=callbacks, moves=True)


@pytest.mark.parametrize("callback", ["ema", "scaling"])
def test_what_a_callback_puts_back_when_it_is_loaded_is_trained_on(
    process: "subprocess.Popen[str]", tmp_path: Path, callback: str
) -> None:
    """The weights, where the checkpoint has an average of them in their place."""
    killed_again_and_again(process, tmp_path, FIELDS, [2 * 5, 5], callbacks=[callback])


def test_the_best_checkpoint_outlives_a_run(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Where another run has another folder, and that of the one before is gone."""
    order: dict[str, Any] = {"callbacks": ["best"], "moves": True}
    with trial(process, tmp_path / "unbroken", **FIELDS) as runs:
        assert runs.train(**order) == 0
        expected = runs.outcome()
    assert expected["result"]["best"] == ["epoch=1-step=6.ckpt", 0.5]
    with trial(process, tmp_path / "killed", **FIELDS) as runs:
        for moment in (2 * 7, 5):
            assert runs.train(moment, **order) == -signal.SIGKILL
        assert runs.train(**order) == 0
        assert runs.outcome() == expected


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        ("iterating", "Iterating.rates is an iterator (cycle)"),
        ("gathering", "callbacks.Gathering.seen: a checkpoint holds tensors, numbers"),
        ("swa", "StochasticWeightAveraging puts a learning rate schedule of its own in the place"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path, callback: str, said: str
) -> None:
    """By its name, before the first batch."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(callbacks=[callback]) == 1
        assert said in runs.refusal()
        assert runs.agent.reports("training") == []


def test_what_training_changes_in_the_model_no_kill_undoes(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """A layer that is trained from an epoch on, and attributes of layers."""
    moments = [2 * 7, 3, 3]  # of each run's own
    killed_again_and_again(process, tmp_path, FIELDS, moments, callbacks=["thawing"])


def test_a_change_that_cannot_be_set_again_is_refused_at_the_checkpoint(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """By its name, before the next one could be made without it."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(callbacks=["growing"]) == 1
        assert "model.network.1 is a Identity now, and was a Dropout" in runs.refusal()
