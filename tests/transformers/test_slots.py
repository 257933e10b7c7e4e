"""A Transformers trial on several slots: the curve of one slot, whatever is killed."""

import math
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.framework_trials import assert_same, killed_in_a_rank, needs, trial
from support.frameworks.transformers_fields import FIELDS
from support.fuse import after, before, out

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
KILLS = [(0, before(3)), (1, after(6)), (1, before(12))]
"""Within an epoch, behind an epoch's end, in the last step."""
WIDE: dict[str, Any] = {
    "slots": 4,
    "width": 512,
    "arguments": {"ddp_find_unused_parameters": False},
}
"""Where torch would lay out its buckets of gradients anew after the first step."""
AVERAGED: dict[str, Any] = {"accumulate": 2, "logging": 5, "workers": 1}


@pytest.mark.parametrize(
    ("slots", "more"),
    [
        (2, {}),
        (2, {"accumulate": 2, "batch": 8}),
        (4, {"counting": True, "accumulate": 2}),
        (2, {"masking": True}),
        (4, {"masking": True, "accumulate": 2}),
        (2, {"trainer": "evaluating"}),
    ],
)
def test_any_number_of_slots_gives_the_same_curve(
    process: "subprocess.Popen[str]", tmp_path: Path, slots: int, more: dict[str, Any]
) -> None:
    """Losses, norms of gradients, validations, and measures of all predictions in their order.

    Where labels count unevenly, parts of batches without any change nothing and stay numbers.
    """
    outcomes = []
    for number in (1, slots):
        with trial(process, tmp_path / str(number), **FIELDS) as runs:
            assert runs.train(slots=number, plain=True, **more) == 0
            outcomes.append(runs.outcome())
    alone, together = outcomes
    assert all(math.isfinite(step["loss"]) for step in alone["training"].values())
    assert_same(together, alone)
    for other in together["others"]:
        assert other["model"] == together["result"]["model"]
        assert other["optimizer"] == together["result"]["optimizer"]


@pytest.mark.parametrize(
    ("kills", "more"),
    [
        pytest.param(KILLS, {}, marks=pytest.mark.versions),
        ([(1, before(4)), (0, before(6))], AVERAGED),
        ([(3, before(4))], WIDE),
    ],
)
def test_no_kill_of_a_rank_shows(
    process: "subprocess.Popen[str]",
    tmp_path: Path,
    kills: list[tuple[int, int]],
    more: dict[str, Any],
) -> None:
    """With dropout and noise the curve, weights and each rank's generators are the same bits."""
    outcome = killed_in_a_rank(process, tmp_path, FIELDS, kills, **more)
    for other in outcome["others"]:
        assert other["model"] == outcome["result"]["model"]
        assert other["drawn"] != outcome["result"]["drawn"]


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_a_checkpoint_of_n_slots_resumes_on_m(
    process: "subprocess.Popen[str]", tmp_path: Path, first: int, second: int
) -> None:
    """Killed within an epoch and continued on another number, the curve is that of one slot."""
    order: dict[str, Any] = {"plain": True, "logging": 2}
    with trial(process, tmp_path / "unbroken", **FIELDS) as runs:
        assert runs.train(**order) == 0
        wanted = runs.outcome()
    with trial(process, tmp_path / "moved", **FIELDS) as runs:
        code = runs.train(before(4), slots=first, victim=first - 1, **order)
        assert code == -signal.SIGKILL
        assert runs.train(slots=second, **order) == 0
        found = runs.outcome(tolerance=1e-4)
    assert_same(found, wanted)


def test_a_kill_on_the_way_out_shows_nowhere(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """A run that is complete trains nothing again, on all of its ranks."""
    with trial(process, tmp_path / "killed", **FIELDS) as runs:
        assert runs.train(out(2), slots=2, victim=1) == -signal.SIGKILL
        assert runs.train(slots=2) == 0
        outcome = runs.outcome()
    (other,) = outcome["others"]
    assert other["model"] == outcome["result"]["model"]
    assert list(outcome["validation"]) == [6, 12]


def test_the_batch_size_is_that_of_each_device(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """As in Transformers; all slots together train as many times more, and say so."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(slots=2, batch=16, length=1, notes=True) == 0
        assert list(runs.curve("training")) == [1, 2]
        [curve] = runs.curve("validation").values()
        assert curve["records"] == 32
        said = runs.results()[0]["log"]
        assert "each step trains 16 records on 2 slots together, 8 on each" in said


def test_a_batch_size_that_contradicts_the_hyperparameter_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """The message names both numbers."""
    with trial(process, tmp_path, **FIELDS, hparams={"global_batch_size": 6}) as runs:
        assert runs.train(slots=2) == 1
        said = "so 2 slots train 4 together, but hyperparameters.global_batch_size is 6"
        assert said in runs.refusal()
