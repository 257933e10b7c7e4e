"""Checkpoints stored behind training: killed at any moment, a trial is the one never killed.

With a gradient scaler in half precision, a moving average of the weights, a sampler that learns,
a frozen table, schedulers, gradients over two batches, and workers of a DataLoader.
"""

import itertools
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rung.core.ipc.protocol import Stored
from rung.storage import FolderStore, open_store
from support.agent_end import agent_end
from support.soak import thinned
from support.trials.runs import Runs

pytestmark = pytest.mark.e2e

LENGTH = 12
CONFIG = {
    "searcher": {"metric": "loss", "smaller_is_better": True},
    "scheduling_unit": 1,
    "min_validation_period": {"batches": 4},
    "min_checkpoint_period": {"batches": 1},
    "checkpoint_policy": "none",
}
MOMENTS_OF_A_STORE = 7
"""Before each of five files, before the manifest, and between it and the announcement."""


def runs_of(parent: "subprocess.Popen[str]", folder: Path) -> Iterator[Runs]:
    """Yield the runs of a trial."""
    fields = {"length": LENGTH, "config": CONFIG, "seed": 5, "hparams": {"lr": 0.01}}
    with agent_end(folder, **fields) as agent:
        yield Runs(parent, agent, folder, "steady")


@pytest.fixture(scope="module", params=[0, 2])
def unbroken(
    request: pytest.FixtureRequest,
    parent: "subprocess.Popen[str]",
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[int, dict[str, Any]]:
    """The number of workers and what becomes of a trial that nobody kills."""
    workers: int = request.param
    outcome: dict[str, Any] = {}
    for runs in runs_of(parent, tmp_path_factory.mktemp("unbroken")):
        assert runs.train(workers) == 0
        outcome = runs.outcome()
    return workers, outcome


def test_the_unbroken_run_has_all_that_can_go_wrong(unbroken: tuple[int, dict[str, Any]]) -> None:
    """The scale of the gradients grows and falls, so a scaler that forgot would be noticed."""
    _, outcome = unbroken
    assert list(outcome["losses"]) == list(range(1, LENGTH + 1))
    scales = [values["scale"] for values in outcome["losses"].values()]
    assert max(scales) > scales[0]
    assert any(later < former for former, later in itertools.pairwise(scales))


@pytest.mark.parametrize("step", thinned(range(1, LENGTH + 1), 5))
def test_killed_at_every_step_it_goes_on_as_if_nothing_had_happened(
    unbroken: tuple[int, dict[str, Any]],
    parent: "subprocess.Popen[str]",
    tmp_path: Path,
    step: int,
) -> None:
    """Wherever the checkpoint behind the step was by then, the outcome is bit for bit the same."""
    workers, expected = unbroken
    for runs in runs_of(parent, tmp_path):
        assert runs.train(workers, step) == -signal.SIGKILL
        assert max(runs.losses(), default=0) == step - 1
        assert runs.train(workers) == 0
        assert runs.outcome() == expected


@pytest.mark.e2e
@pytest.mark.parametrize("moment", thinned(range(1, 4 * MOMENTS_OF_A_STORE + 1), 3))
def test_killed_while_a_checkpoint_is_stored(
    unbroken: tuple[int, dict[str, Any]],
    parent: "subprocess.Popen[str]",
    tmp_path: Path,
    moment: int,
) -> None:
    """Between any two files, around the manifest, before the announcement; and then once more."""
    workers, expected = unbroken
    for runs in runs_of(parent, tmp_path):
        runs.fuse = "stores"
        assert runs.train(workers, moment) == -signal.SIGKILL
        assert len(runs.agent.of(Stored)) == (moment - 1) // MOMENTS_OF_A_STORE
        assert runs.train(workers, moment % MOMENTS_OF_A_STORE + 1) == -signal.SIGKILL
        assert runs.train(workers) == 0
        assert runs.outcome() == expected


def test_a_frozen_table_is_stored_once(parent: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """All checkpoints of all runs have it, and it lies on the disk a single time."""
    for runs in runs_of(parent, tmp_path):
        assert runs.train(0, 9) == -signal.SIGKILL
        assert runs.train(0) == 0
        store = open_store(runs.agent.objects_url)
        assert isinstance(store, FolderStore)
        found = [info.name for info in store.list("") if info.name.endswith("model.frozen.pt")]
        assert len(found) >= LENGTH
        assert len({(store.root / name).stat().st_ino for name in found}) == 1
