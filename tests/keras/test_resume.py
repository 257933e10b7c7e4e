"""A Keras trial killed at any step and started again is bit for bit the one never killed."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.framework_trials import (
    DETERMINISTIC,
    configured,
    goes_on_by_itself,
    killed_again_and_again,
    needs,
    parent,
    trial,
)
from support.frameworks.keras_fields import FIELDS
from support.fuse import before, out

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.timeout(300)]
STEPS = 9
"""Three epochs of three."""
ALL = [*(before(step) for step in range(1, STEPS + 1)), out(3)]
"""In each step, and on the way out."""
PLACES = [before(1), before(5), before(6), before(7), before(9), out(3)]
"""Before the first step, within an epoch, before and behind its end, in the last step and out."""
TWICE = [before(5), before(7)]
"""Within an epoch, and behind one: where a source of data has to be set."""


@pytest.fixture(scope="module")
def tensorflow() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Keras on TensorFlow."""
    with parent("support.frameworks.keras_trial", {"KERAS_BACKEND": "tensorflow"}) as process:
        yield process


@pytest.fixture(scope="module")
def torch() -> Iterator["subprocess.Popen[str]"]:
    """A parent with Keras on torch."""
    with parent("support.frameworks.keras_trial", {"KERAS_BACKEND": "torch"}) as process:
        yield process


@pytest.mark.parametrize(
    ("source", "moments"),
    [
        ("arrays", PLACES),
        pytest.param("arrays", ALL, marks=[pytest.mark.versions, pytest.mark.soak]),
        ("shuffled", TWICE),
        ("endless", TWICE[:1]),
        ("noisy", TWICE),
    ],
)
def test_on_tensorflow_no_kill_shows(
    tensorflow: "subprocess.Popen[str]", tmp_path: Path, source: str, moments: list[int]
) -> None:
    """Whatever the data come from: curves, weights, optimizer, generators are the same."""
    outcome = killed_again_and_again(tensorflow, tmp_path, FIELDS, moments, source=source)
    assert list(outcome["training"]) == list(range(1, STEPS + 1))
    assert list(outcome["validation"]) == [3, 6, 9]


@pytest.mark.parametrize(
    ("source", "moments"),
    [
        ("arrays", PLACES),
        ("loader", TWICE),
        ("noisy", TWICE),
        pytest.param("arrays", ALL, marks=pytest.mark.soak),
        pytest.param("loader", ALL, marks=pytest.mark.soak),
        pytest.param("noisy", ALL, marks=pytest.mark.soak),
    ],
)
def test_on_torch_no_kill_shows(
    torch: "subprocess.Popen[str]", tmp_path: Path, source: str, moments: list[int]
) -> None:
    """Whatever the data come from: curves, weights, optimizer, generators are the same."""
    outcome = killed_again_and_again(torch, tmp_path, FIELDS, moments, source=source)
    assert list(outcome["training"]) == list(range(1, STEPS + 1))
    assert list(outcome["validation"]) == [3, 6, 9]


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_no_kill_shows_where_no_period_is_set(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str
) -> None:
    """Whichever batches the clock chose."""
    process = request.getfixturevalue(backend)
    goes_on_by_itself(process, tmp_path, FIELDS, TWICE, source="arrays")


@pytest.mark.parametrize(("backend", "source"), [("tensorflow", "shuffled"), ("torch", "loader")])
def test_no_kill_shows_where_fit_is_told_how_long_an_epoch_is(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str, source: str
) -> None:
    """Each epoch begins with an iterator of its own, as it would if Keras found that out."""
    process = request.getfixturevalue(backend)
    counted = {"steps_per_epoch": 3}
    killed_again_and_again(process, tmp_path, FIELDS, [before(7)], source=source, fit=counted)


@pytest.mark.parametrize(
    ("backend", "order", "said"),
    [
        ("tensorflow", ("noisy", 2), "of 3 batches piece by piece"),
        ("tensorflow", ("untold", 2), "of unknown length piece by piece"),
        ("tensorflow", ("generated", 3), "cannot tell the position"),
        ("torch", ("noisy", 2), "of 3 batches piece by piece"),
        ("torch", ("loader", 2), "of 3 batches piece by piece"),
    ],
)
def test_epochs_that_are_pieces_of_the_data_are_refused(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    backend: str,
    order: tuple[str, int],
    said: str,
) -> None:
    """Nobody could set their place in a run that goes on, or even in the next epoch."""
    source, steps = order
    with trial(request.getfixturevalue(backend), tmp_path, **FIELDS) as runs:
        assert runs.train(source=source, fit={"steps_per_epoch": steps}) == 1
        assert runs.agent.reports("training") == []
        assert said in runs.refusal()


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_generator_of_validation_data_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str
) -> None:
    """A run that goes on would validate with its first batches again."""
    with trial(request.getfixturevalue(backend), tmp_path, **FIELDS) as runs:
        assert runs.train(source="arrays", generator=True, fit={"validation_steps": 2}) == 1
        assert runs.agent.reports("training") == []
        assert "fit(validation_data=…) is a generator" in runs.refusal()


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_second_fit_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str
) -> None:
    """A run that goes on could not tell which of them it is in, whoever its callbacks are."""
    with trial(request.getfixturevalue(backend), tmp_path, **FIELDS) as runs:
        assert runs.train(source="arrays", epochs=1, twice=True) == 1
        assert list(runs.curve("training")) == [1, 2, 3]
        assert "has called fit() before" in runs.refusal()


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_every_batch_is_a_sign_of_life(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str
) -> None:
    """Those that are trained, and those that Keras or Rung, within an epoch, validates with."""
    fields = configured(FIELDS, min_validation_period={"batches": 2}) | {"length": 1}
    with trial(request.getfixturevalue(backend), tmp_path, **fields) as runs:
        assert runs.train(source="arrays", notes=True) == 0
        assert list(runs.curve("validation")) == [2, 3]
        assert runs.results()[0]["beats"] == 3 + 1 + 3


def test_what_torch_is_asked_for_is_all_of_it(
    torch: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """CuBLAS is, too; and a script that switches it off again is told so."""
    fields = configured(FIELDS, **DETERMINISTIC) | {"length": 1}
    with trial(torch, tmp_path, **fields) as runs:
        assert runs.train(source="arrays", notes=True, loose=True) == 0
        [result] = runs.results()
        assert result["cublas"] == ":4096:8"
        assert any("has switched torch." in text for text in result["warnings"])


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_log_has_the_batch_size(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str
) -> None:
    """That which `fit` has; it must be the hyperparameter, where that is there."""
    fields = FIELDS | {"length": 1, "hparams": {"global_batch_size": 6}}
    process = request.getfixturevalue(backend)
    with trial(process, tmp_path / "as said", **fields) as runs:
        assert runs.train(source="arrays", notes=True) == 0
        assert "each step trains 6 records" in runs.results()[0]["log"]
    with trial(process, tmp_path / "another", **fields) as runs:
        assert runs.train(source="arrays", fit={"batch_size": 9}) == 1
        assert "fit(batch_size=…) is 9" in runs.refusal()
