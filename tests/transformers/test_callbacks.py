"""A Transformers trial goes on with what its callbacks have done and keep; or is refused."""

import random
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
from support.frameworks import transformers_fields
from support.fuse import after, before
from support.soak import thinned

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS = configured(
    transformers_fields.FIELDS | {"length": 4}, min_checkpoint_period={"batches": 1}
)
STEPS = 12
"""Four epochs of three."""


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Transformers."""
    with parent("support.frameworks.transformers_callbacks", {}) as started:
        yield started


@pytest.mark.parametrize("world", thinned(range(3), 3))
def test_whatever_callbacks_do_no_kill_shows(
    process: "subprocess.Popen[str]", tmp_path: Path, world: int
) -> None:
    """Callbacks in an order that is drawn by a number, killed at steps that are drawn, too."""
    drawing = random.Random(world)  # noqa: S311 - a test's own
    callbacks = drawing.sample(["wild", "early", "rung"], 3)
    steps = sorted(drawing.sample(range(1, STEPS + 1), 4))
    moments = [drawing.choice([before, after])(step) for step in steps]
    killed_again_and_again(process, tmp_path, FIELDS, moments, callbacks=callbacks)


def test_what_a_script_logs_is_reported(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """At its step, beside what the trainer logs; nothing of an evaluation, no sum at the end."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(callbacks=["rung"], logs=True) == 0
        own = {step: v for step, v in runs.agent.reports("training") if "loss" not in v}
        assert own == {step: {"own": float(step)} for step in range(1, STEPS, 2)}


def test_a_state_that_cannot_be_kept_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """By its name, before the first batch."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(callbacks=["iterating", "rung"]) == 1
        assert "Iterating.rates is an iterator (cycle)" in runs.refusal()
        assert runs.agent.reports("training") == []


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (
            {"callbacks": ["exporting", "rung"]},
            "Exporting.state()['attributes']['seen']['words'] is a set",
        ),
        (
            {"callbacks": ["rung"], "odd": "model"},
            "net.3._extra_state of the model's state_dict() is a set",
        ),
        (
            {"callbacks": ["rung"], "odd": "scheduler"},
            "the state_dict() of the trainer's scheduler has more than tensors and plain values",
        ),
    ],
)
def test_a_state_that_no_checkpoint_can_contain_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path, order: dict[str, Any], said: str
) -> None:
    """By its name, before the first batch: of a callback, the model, the schedule."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(**order) == 1
        assert said in runs.refusal()
        assert runs.agent.reports("training") == []


def test_a_generator_that_draws_for_batches_is_named_in_the_log(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Its state at a checkpoint would be that behind batches which are fetched ahead."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(callbacks=["rung"], odd="collator") == 0
        said = runs.results()[0]["warnings"]
        assert any("trainer.data_collator.drawing is a generator of its own" in it for it in said)


def test_what_training_changes_in_the_model_no_kill_undoes(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """A layer that is trained from an epoch on, and attributes of layers."""
    moments = [before(4), after(7), before(10)]
    killed_again_and_again(process, tmp_path, FIELDS, moments, callbacks=["thawing", "rung"])


def test_a_change_that_cannot_be_set_again_is_refused_at_the_checkpoint(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """By its name, before the next one could be made without it."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(callbacks=["regrouping", "rung"]) == 1
        assert "the optimizer has other groups of parameters now" in runs.refusal()
