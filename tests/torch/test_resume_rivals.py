"""Two networks against each other, in mixed precision: killed at every step, nothing shows.

Several models, optimizers and schedulers of every mode, the scaler of `use_amp` with steps left
out, gradients over two batches, an average of the weights, callbacks with states. Reports come
every three batches, so that the kill falls into the middle of what a report is made of.
"""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.agent_end import agent_end
from support.soak import thinned
from support.trials.runs import Runs

pytestmark = pytest.mark.e2e

LENGTH = 14
CONFIG = {
    "searcher": {"metric": "loss", "smaller_is_better": True},
    "scheduling_unit": 3,
    "min_validation_period": {"batches": 4},
    "min_checkpoint_period": {"batches": 1},
    "checkpoint_policy": "none",
}


def runs_of(parent: "subprocess.Popen[str]", folder: Path) -> Iterator[Runs]:
    """Yield the runs of a trial."""
    fields = {"length": LENGTH, "config": CONFIG, "seed": 5, "hparams": {"lr": 0.01}}
    with agent_end(folder, **fields) as agent:
        yield Runs(parent, agent, folder, "rivals")


@pytest.fixture(scope="module")
def unbroken(
    parent: "subprocess.Popen[str]", tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What becomes of a trial that nobody kills."""
    outcome: dict[str, Any] = {}
    for runs in runs_of(parent, tmp_path_factory.mktemp("unbroken")):
        assert runs.train(0) == 0
        outcome = runs.outcome()
    return outcome


def test_the_unbroken_run_has_all_that_can_go_wrong(unbroken: dict[str, Any]) -> None:
    """Steps are left out, schedules differ, and the last report is of several batches."""
    rates = [values["rival lr"] for values in unbroken["losses"].values()]
    assert len(set(rates)) > 1
    by_epoch, by_step, by_batch, manual = unbroken["steps"]
    assert by_epoch == by_batch == manual == 0
    assert 0 < by_step < LENGTH // 2  # some steps of the judge were left out
    assert 0 < sum(values["moved"] for values in unbroken["losses"].values()) < LENGTH // 2
    patience = unbroken["patience"]
    assert patience["epochs"] == LENGTH // 6
    assert len(patience["lowered"]) == len(unbroken["validations at"])
    assert min(patience["lowered"]) < patience["lowered"][0]
    assert len(patience["batches"]) == 2


@pytest.mark.parametrize("step", thinned(range(1, LENGTH + 1), 3))
def test_killed_at_every_step_it_goes_on_as_if_nothing_had_happened(
    unbroken: dict[str, Any], parent: "subprocess.Popen[str]", tmp_path: Path, step: int
) -> None:
    """Metrics, weights, optimizers, schedulers, scaler and callbacks are bit for bit the same."""
    for runs in runs_of(parent, tmp_path):
        assert runs.train(0, step) == -signal.SIGKILL
        assert runs.train(0) == 0
        assert runs.outcome() == unbroken
