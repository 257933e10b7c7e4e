"""A trial with a TensorFlow loop of its own, killed at every step, is the one never killed."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.framework_trials import goes_on_by_itself, killed_again_and_again, needs, trial
from support.fuse import before

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e, pytest.mark.timeout(300)]
CONFIG: dict[str, Any] = {
    "searcher": {"metric": "loss", "smaller_is_better": True},
    "scheduling_unit": 1,
    "min_checkpoint_period": {"batches": 2},
    "checkpoint_policy": "none",
}
FIELDS: dict[str, Any] = {
    "length": 3,
    "time_metric": "epochs",
    "seed": 5,
    "config": CONFIG,
}
STEPS = 9
"""Three epochs of three."""
ALL = [before(step) for step in range(1, STEPS + 1)]
EVERYWHERE = [before(1), before(4), before(5), before(9)]
"""In the first step, behind an epoch's end, within an epoch, in the last step."""
TWICE = [before(5), before(7)]
"""Within an epoch, and behind one."""


@pytest.mark.parametrize(
    ("source", "moments", "plain"),
    [
        ("shuffled", EVERYWHERE, False),
        pytest.param("shuffled", ALL, False, marks=[pytest.mark.versions, pytest.mark.soak]),
        ("function", EVERYWHERE, True),
        ("endless", TWICE, True),
        ("unknown", TWICE, True),
        ("python", TWICE, True),
        ("listed", TWICE, True),
    ],
)
def test_no_kill_shows(
    process: "subprocess.Popen[str]",
    tmp_path: Path,
    source: str,
    moments: list[int],
    plain: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Curves, weights, optimizer, generators, what two methods keep: the same bits."""
    order: dict[str, Any] = {"source": source, "plain": plain}
    outcome = killed_again_and_again(process, tmp_path, FIELDS, moments, **order)
    assert list(outcome["training"]) == list(range(1, STEPS + 1))
    assert list(outcome["validation"]) == [3, 6, 9]
    assert outcome["result"]["steps"] == STEPS


def test_no_kill_shows_where_no_period_is_set(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Whichever batches the clock chose."""
    goes_on_by_itself(process, tmp_path, FIELDS, TWICE, source="unknown", plain=True)


def test_a_longer_length_goes_on(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """A run ends at its length in batches, within an epoch; the next one goes on from there.

    It is validated at each epoch of three batches, and where it ends.
    """
    fields = FIELDS | {"time_metric": "batches", "length": 7}
    with trial(process, tmp_path / "unbroken", **fields) as runs:
        assert runs.train(source="unknown", plain=True) == 0
        expected = runs.outcome()["training"]
    with trial(process, tmp_path / "promoted", **fields) as runs:
        assert runs.train(source="unknown", plain=True, length=4) == 0
        assert list(runs.curve("validation")) == [3, 4]
        assert runs.train(source="unknown", plain=True, length=7) == 0
        assert runs.curve("training") == expected
        assert list(runs.curve("validation")) == [3, 4, 6, 7]


def test_every_batch_is_a_sign_of_life(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Those that are trained, and those that a mean is made of."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(length=1, source="listed", notes=True) == 0
        assert runs.results()[0]["beats"] == 3 + 5


def test_the_log_has_the_batch_size(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """By the first batch; it must be the hyperparameter, where that is there."""
    with trial(process, tmp_path / "as said", **FIELDS) as runs:
        assert runs.train(length=1, source="listed", notes=True) == 0
        assert "each step trains 8 records" in runs.results()[0]["log"]
    with trial(
        process, tmp_path / "another", **FIELDS | {"hparams": {"global_batch_size": 6}}
    ) as runs:
        assert runs.train(source="listed") == 1
        assert "size of a batch of the data is 8" in runs.refusal()
