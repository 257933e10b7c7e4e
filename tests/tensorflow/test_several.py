"""One TensorFlow training over several slots: one curve, checkpoints that fit any number."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from frontdoors.fuse import before
from frontdoors.several import ranks
from frontdoors.trials import needs, parent

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS: dict[str, Any] = {
    "length": 9,
    "time_metric": "batches",
    "seed": 5,
    "config": {
        "searcher": {"metric": "loss", "smaller_is_better": True},
        "scheduling_unit": 1,
        "min_validation_period": {"batches": 3},
        "min_checkpoint_period": {"batches": 2},
        "checkpoint_policy": "none",
    },
}
CALM: dict[str, Any] = {"source": "shuffled", "noise": 0.0}
"""Without dropout and batch normalisation, which see the records of their own rank."""
NOISY: dict[str, Any] = {"source": "shuffled", "noise": 0.4}
KILLED = -9
OWN = {"best", "drawn", "total"}
"""Metrics of what each rank has of its own."""

Curve = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def parents() -> Iterator["list[subprocess.Popen[str]]"]:
    """Two parents with TensorFlow."""
    with ExitStack() as stack:
        yield [stack.enter_context(parent("frontdoors.tensorflow_trial", {})) for _ in range(2)]


@pytest.fixture(scope="module")
def alone(
    parents: "list[subprocess.Popen[str]]", tmp_path_factory: pytest.TempPathFactory
) -> Curve:
    """The curve of one slot."""
    with ranks(parents, tmp_path_factory.mktemp("alone"), **FIELDS) as trial:
        assert trial.train(1, **CALM) == [0]
        return trial.curve()


def assert_same(found: Curve, wanted: Curve) -> None:
    """Hold two curves against each other, to within the error of sums in another order."""
    assert found.keys() == wanted.keys()
    for moment, values in wanted.items():
        shared = {name: value for name, value in values.items() if name not in OWN}
        theirs = {name: value for name, value in found[moment].items() if name not in OWN}
        assert theirs == pytest.approx(shared, rel=1e-4), moment


def test_two_slots_give_the_curve_of_one(
    parents: "list[subprocess.Popen[str]]", alone: Curve, tmp_path: Path
) -> None:
    """Losses, validations and counts of records, uneven last batches included; equal weights."""
    with ranks(parents, tmp_path, **FIELDS) as trial:
        assert trial.train(2, **CALM) == [0, 0]
        assert alone["validation", 9]["records"] == 66
        assert_same(trial.curve(), alone)
        chief, other = trial.results(2)
        assert chief["weights"] == other["weights"]
        assert not trial.agents[1].reports("training")


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_a_checkpoint_resumes_on_another_number_of_slots(
    parents: "list[subprocess.Popen[str]]", alone: Curve, tmp_path: Path, first: int, second: int
) -> None:
    """Killed on some slots and continued on others, the curve is that of one slot."""
    with ranks(parents, tmp_path, **FIELDS) as trial:
        assert trial.train(first, before(6), **CALM) == [KILLED] * first
        assert trial.train(second, **CALM) == [0] * second
        found: Curve = {}
        for kind in ("training", "validation"):
            found |= {(kind, step): values for step, values in trial.chief.reports(kind)}
        assert_same(found, alone)


def test_on_as_many_slots_it_resumes_bit_for_bit(
    parents: "list[subprocess.Popen[str]]", tmp_path: Path
) -> None:
    """With dropout and batch normalisation: each rank goes on with what it has of its own."""
    with ranks(parents, tmp_path / "unbroken", **FIELDS) as trial:
        assert trial.train(2, **NOISY) == [0, 0]
        wanted, results = trial.curve(), trial.results(2)
    assert results[0]["drawn"] != results[1]["drawn"]
    with ranks(parents, tmp_path / "killed", **FIELDS) as trial:
        for moment in (before(3), before(6), before(9)):
            assert trial.train(2, moment, **NOISY) == [KILLED, KILLED]
        assert trial.train(2, **NOISY) == [0, 0]
        assert trial.curve() == wanted
        assert trial.results(2) == results
