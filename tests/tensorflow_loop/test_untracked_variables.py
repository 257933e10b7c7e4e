"""Variables beside what a training keeps: no step may change them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rung.core.ipc.protocol import Stored
from support.framework_trials import (
    PUBLIC,
    configured,
    killed_again_and_again,
    needs,
    trial,
)
from support.fuse import before

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS: dict[str, Any] = {
    "length": 3,
    "time_metric": "epochs",
    "seed": 5,
    "config": {
        "searcher": {"metric": "loss", "smaller_is_better": True},
        "scheduling_unit": 1,
        "min_checkpoint_period": {"batches": 2},
        "checkpoint_policy": "none",
    },
}
SOURCE: dict[str, Any] = {"source": "unknown", "plain": True}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("average", "average:0 (float32, shape ())"),
        ("late", "late_average:0 (float32, shape ())"),
        ("noise", "StateVar:0 (int64, shape (3,))"),
    ],
)
def test_a_change_is_refused_before_a_checkpoint(
    process: "subprocess.Popen[str]", tmp_path: Path, change: str, name: str
) -> None:
    """A mean, one that the first step makes, a generator: none is lost in silence."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(change=change, **SOURCE) == 1
        assert name in runs.refusal()
        assert "in Training(…, keep={…})" in runs.refusal()
        assert runs.agent.of(Stored) == []


def test_states_of_generators_may_begin_anew_where_exactness_is_not_asked_for(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """A mean may not."""
    fields = configured(FIELDS, **PUBLIC)
    with trial(process, tmp_path / "noise", **fields) as runs:
        assert runs.train(change="noise", **SOURCE) == 0
    with trial(process, tmp_path / "average", **fields) as runs:
        assert runs.train(change="average", **SOURCE) == 1
        assert "average:0" in runs.refusal()


def test_what_two_methods_keep_is_kept(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """The variables of an object with `state_dict`; frozen ones and the validation's stay."""
    killed_again_and_again(process, tmp_path, FIELDS, [before(5)], change="told", **SOURCE)
