"""A Transformers trial killed at any step and started again is bit for bit the same."""

import signal
import subprocess
from pathlib import Path

import pytest

from support.framework_trials import (
    DETERMINISTIC,
    configured,
    goes_on_by_itself,
    killed_again_and_again,
    needs,
    trial,
)
from support.frameworks.transformers_fields import FIELDS
from support.fuse import before, out

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
STEPS = 12
"""Two epochs of six steps."""
EVERYWHERE = [before(step) for step in range(1, STEPS + 1)]
PLACES = [before(1), before(4), before(6), before(7), before(12)]
"""Before the first step, within an epoch, before and behind its end, before the last step."""
ACCUMULATED = [before(2), before(3), before(4), before(6)]
"""Within an epoch, at its end, behind it, in the last step, of two epochs of three."""


@pytest.mark.parametrize(
    "moments", [PLACES, pytest.param(EVERYWHERE, marks=[pytest.mark.versions, pytest.mark.soak])]
)
def test_no_kill_shows(
    process: "subprocess.Popen[str]", tmp_path: Path, moments: list[int]
) -> None:
    """Curves, weights, optimizer and generators are the same."""
    outcome = killed_again_and_again(process, tmp_path, FIELDS, moments)
    assert list(outcome["training"]) == list(range(1, STEPS + 1))
    assert list(outcome["validation"]) == [6, 12]


def test_no_kill_shows_in_what_the_trainer_averages(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """The same with means over several steps, accumulation, and worker processes."""
    outcome = killed_again_and_again(
        process, tmp_path, FIELDS, ACCUMULATED, accumulate=2, logging=5, workers=1
    )
    assert list(outcome["training"]) == [5]


def test_no_kill_shows_where_an_evaluation_falls_on_an_epochs_last_step(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """What the trainer wants evaluated by steps belongs to the epoch's end, as its checkpoint."""
    by_steps = {"eval_strategy": "steps", "eval_steps": 3}
    outcome = killed_again_and_again(
        process, tmp_path, FIELDS, [before(5), before(8)], arguments=by_steps
    )
    assert list(outcome["validation"]) == [3, 6, 9, 12]
    assert [values["epochs"] for values in outcome["validation"].values()] == [0, 1, 1, 2]


def test_no_kill_shows_where_no_period_is_set(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Whichever steps the clock chose."""
    goes_on_by_itself(process, tmp_path / "1", FIELDS, [before(5), before(9)])
    goes_on_by_itself(process, tmp_path / "2", FIELDS, [before(4)], accumulate=2)


def test_several_validation_sets_are_one_validation(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Their metrics are reported together; what a script evaluates by itself is its own."""
    searcher = FIELDS["config"]["searcher"] | {"metric": "eval_b_loss"}
    with trial(process, tmp_path, **configured(FIELDS, searcher=searcher)) as runs:
        assert runs.train(names=["a", "b"], beside=True) == 0
        found = runs.curve("validation")
    assert list(found) == [6, 12]
    for values in found.values():
        assert {"eval_a_loss", "eval_b_loss"} <= values.keys()
        assert not any(name.startswith("other") for name in values)


def test_saving_only_what_is_best_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """The message names the argument, and what to say instead."""
    with trial(process, tmp_path, **FIELDS) as runs:
        best = {"save_strategy": "best", "metric_for_best_model": "loss"}
        assert runs.train(arguments=best) == 1
        assert 'save_strategy="best"' in runs.refusal()
        assert "checkpoint_policy: best" in runs.refusal()


def test_a_second_training_is_refused(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """A run that goes on could not tell which of them it is in."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(fits=2) == 1
        assert "has called rung.train() before" in runs.refusal()


def test_a_kill_on_the_way_out_shows_nowhere(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """What is trained already is not trained again: curves and model are there at once."""
    with trial(process, tmp_path / "unbroken", **FIELDS) as runs:
        assert runs.train() == 0
        expected = runs.outcome()
    with trial(process, tmp_path / "killed", **FIELDS) as runs:
        assert runs.train(out(2)) == -signal.SIGKILL
        assert runs.train() == 0
        outcome = runs.outcome()
    assert outcome["result"].pop("optimizer") is None
    for found in (outcome, expected):
        found["result"] = {"model": found["result"]["model"]}
    assert outcome == expected


def test_every_batch_is_a_sign_of_life(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Those of a step that has many, and those of evaluations too: each may take long."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(length=1, accumulate=2, notes=True) == 0
        assert runs.results()[0]["beats"] == 6 + 3


def test_what_torch_is_asked_for_is_all_of_it(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """CuBLAS is, too; and a script that switches it off again is told so."""
    with trial(process, tmp_path, **configured(FIELDS | {"length": 1}, **DETERMINISTIC)) as runs:
        assert runs.train(notes=True, loose=True) == 0
        [result] = runs.results()
        assert result["cublas"] == ":4096:8"
        assert any("has switched torch." in text for text in result["warnings"])


def test_the_log_has_the_batch_size(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Of all slots together, and how many steps make one of the optimizer."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(length=1, accumulate=2, notes=True) == 0
        said = "each step trains 4 records; gradients are accumulated over 2"
        assert said in runs.results()[0]["log"]
