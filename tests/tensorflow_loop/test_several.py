"""One TensorFlow training over several slots: one curve, checkpoints that fit any number."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.framework_trials import (
    assert_same,
    configured,
    killed_again_and_again,
    needs,
    trial,
)
from support.fuse import before

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
TOLD = {"launcher": "tensorflow"}
"""The section of ranks that find `TF_CONFIG`."""
OWN = {"best", "drawn", "total"}
"""Metrics of what each rank has of its own."""


@pytest.fixture(scope="module")
def alone(
    process: "subprocess.Popen[str]", tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What becomes of the trial on one slot."""
    with trial(process, tmp_path_factory.mktemp("alone"), **FIELDS) as runs:
        assert runs.train(**CALM) == 0
        return runs.outcome()


def test_two_slots_give_the_curve_of_one(
    process: "subprocess.Popen[str]", alone: dict[str, Any], tmp_path: Path
) -> None:
    """Losses, validations and counts of records, uneven last batches included; equal weights."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(slots=2, **CALM) == 0
        found = runs.outcome()
        assert [step for step, _ in runs.agent.reports("training")] == list(range(1, 10))
    assert alone["validation"][9]["records"] == 66
    assert_same(found, alone, OWN)
    (other,) = found["others"]
    assert other["weights"] == found["result"]["weights"]


def test_four_slots_and_tensorflows_launcher_give_the_curve_too(
    process: "subprocess.Popen[str]", alone: dict[str, Any], tmp_path: Path
) -> None:
    """Parts of one record and of two; and ranks that find `TF_CONFIG`."""
    for folder, config, slots in (("four", {}, 4), ("told", TOLD, 2)):
        with trial(process, tmp_path / folder, **configured(FIELDS, distributed=config)) as runs:
            assert runs.train(slots=slots, **CALM) == 0
            assert_same(runs.outcome(), alone, OWN)


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2), (4, 2)])
def test_a_checkpoint_resumes_on_another_number_of_slots(
    process: "subprocess.Popen[str]",
    alone: dict[str, Any],
    tmp_path: Path,
    first: int,
    second: int,
) -> None:
    """Killed on some slots and continued on others, the curve is that of one slot."""
    with trial(process, tmp_path, **FIELDS) as runs:
        code = runs.train(before(6), slots=first, victim=first - 1, **CALM)
        assert code == -signal.SIGKILL
        assert runs.train(slots=second, **CALM) == 0
        last = {kind: dict(runs.agent.reports(kind)) for kind in ("training", "validation")}
    assert_same(last, alone, OWN)


@pytest.mark.versions
def test_on_as_many_slots_it_resumes_bit_for_bit(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """With dropout and batch normalisation: each rank goes on with what it has of its own."""
    moments = [before(3), before(6), before(9)]
    order: dict[str, Any] = {"source": "shuffled", "noise": 0.4}
    found = killed_again_and_again(process, tmp_path, FIELDS, moments, slots=2, **order)
    (other,) = found["others"]
    assert other["weights"] == found["result"]["weights"]
    assert other["drawn"] != found["result"]["drawn"]


def test_a_model_in_parts_is_refused(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """The field to change is named, before TensorFlow waits for anyone."""
    with trial(process, tmp_path, **configured(FIELDS, distributed={"strategy": "fsdp"})) as runs:
        assert runs.train(slots=2, **CALM) == 1
        assert "distributed.strategy: fsdp" in runs.refusal()


def test_another_launcher_is_refused(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """The field to change is named, and what would do."""
    fields = configured(FIELDS, distributed={"launcher": "horovod"})
    with trial(process, tmp_path, **fields) as runs:
        assert runs.train(slots=2, **CALM) == 1
        assert "launched by torch or tensorflow: use `launcher: torch`" in runs.refusal()


def test_a_script_may_connect_its_ranks_itself(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """A strategy of the script's own finds the others in `TF_CONFIG`."""
    with trial(process, tmp_path, **configured(FIELDS, distributed=TOLD)) as runs:
        assert runs.train(slots=2, own=True) == 0
        assert runs.results() == [{"total": 3.0}] * 2


def test_data_that_are_sharded_already_are_refused(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """A part of a part would leave records out; nothing is trained."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(slots=2, **CALM | {"source": "sharded"}) == 1
        assert "training batches of the slots differ" in runs.refusal()
        assert runs.agent.reports("training") == []


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("section", [{}, TOLD])
def test_a_rank_that_never_comes_is_missed(
    process: "subprocess.Popen[str]", tmp_path: Path, section: dict[str, Any], late: int
) -> None:
    """The others say in a sentence what they waited for, whichever launcher it is."""
    with trial(process, tmp_path, **configured(FIELDS, distributed=section)) as runs:
        assert runs.train(slots=2, late=late, **CALM) == 1
        assert "not all of the run's 2 processes have come to rung.tensorflow" in runs.refusal()
