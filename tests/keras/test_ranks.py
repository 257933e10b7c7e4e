"""Keras on several slots: the curve of one, whichever rank is killed."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from frontdoors.fuse import after, before, out
from frontdoors.ranks import Ranks, ranks
from frontdoors.trials import needs, parent

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS: dict[str, Any] = {
    "length": 3,
    "time_metric": "epochs",
    "seed": 5,
    "config": {
        "searcher": {"metric": "loss", "smaller_is_better": True},
        "scheduling_unit": 1,
        "min_checkpoint_period": {"batches": 2},
        "min_validation_period": {"batches": 2},
        "checkpoint_policy": "none",
    },
}
STEPS = 9
"""Three epochs of three."""
KILLS = {
    "tensorflow": [(1, before(5)), (0, after(7)), (1, out(3))],
    "torch": [(1, before(2)), (0, before(5)), (1, after(5)), (0, before(9)), (1, out(3))],
}
"""Which rank dies when: within a step, behind one, on the way out."""
Curves = dict[str, dict[int, dict[str, Any]]]


class Backend(NamedTuple):
    """Keras on a backend."""

    name: str
    parent: "subprocess.Popen[str]"
    alone: Curves
    """The curves of one slot."""


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    """A parent that has Keras on a backend and forks ranks."""
    runner, environment = "frontdoors.ranks_runner", {"KERAS_BACKEND": request.param}
    with parent("frontdoors.keras_ranks", environment, runner) as process:
        alone = trained(process, tmp_path_factory.mktemp("alone"), 1).curves()
        yield Backend(request.param, process, alone)


def trained(process: "subprocess.Popen[str]", folder: Path, size: int, **order: Any) -> Ranks:
    """Return a trial that was trained on so many ranks, and nobody killed."""
    with ranks(process, folder, size, **FIELDS) as trial:
        assert trial.train(size, **order) == [0] * size
        return trial


def assert_close(found: Curves, wanted: Curves) -> None:
    """Hold two curves against each other, to within the error of sums in another order."""
    for kind, curve in wanted.items():
        assert found[kind].keys() == curve.keys()
        for step, values in curve.items():
            assert found[kind][step] == pytest.approx(values, rel=1e-4, abs=1e-6), (kind, step)


@pytest.mark.parametrize("size", [2, 4])
def test_any_number_of_slots_gives_the_same_curve(
    backend: Backend, tmp_path: Path, size: int
) -> None:
    """Losses, metrics and validations are those of one slot, and the same on all ranks."""
    assert list(backend.alone["training"]) == list(range(1, STEPS + 1))
    trial = trained(backend.parent, tmp_path, size)
    assert_close(trial.curves(), backend.alone)
    for rank in range(1, size):
        assert trial.result(rank) == trial.result(0)


def test_no_kill_of_a_rank_shows(backend: Backend, tmp_path: Path) -> None:
    """With noise everywhere, either rank killed: curves, weights and logs are the same bits."""
    source = "dataset" if backend.name == "tensorflow" else "noisy"
    order: dict[str, Any] = {"noise": True, "source": source}
    wanted = trained(backend.parent, tmp_path / "calm", 2, **order)
    with ranks(backend.parent, tmp_path / "storm", 2, **FIELDS) as trial:
        for victim, moment in KILLS[backend.name]:
            codes = trial.train(2, victim=victim, moment=moment, **order)
            assert codes[victim] == -signal.SIGKILL, moment
        assert trial.train(2, **order) == [0, 0]
        assert trial.curves() == wanted.curves()
        for rank in (0, 1):
            assert trial.result(rank)["weights"] == wanted.result(0)["weights"]


def test_data_that_end_without_notice_end_alike(backend: Backend, tmp_path: Path) -> None:
    """All ranks have the epoch's logs, also where the step behind its last batch finds no data."""
    if backend.name == "torch":
        pytest.skip("tf.data is TensorFlow's")
    trial = trained(backend.parent, tmp_path, 2, source="sudden")
    assert list(trial.last_curves()["training"]) == list(range(1, STEPS + 1))
    assert trial.result(1) == trial.result(0)
    assert min(trial.result(0)["logs"]["loss"]) > 0


def test_a_checkpoint_of_n_slots_resumes_on_m(backend: Backend, tmp_path: Path) -> None:
    """On two slots, then on one, then on two again: the curve is that of one slot."""
    with ranks(backend.parent, tmp_path, 2, **FIELDS) as trial:
        assert trial.train(2, victim=1, moment=before(5))[1] == -signal.SIGKILL
        assert trial.train(1, victim=0, moment=before(7))[0] == -signal.SIGKILL
        assert trial.train(2) == [0, 0]
        assert_close(trial.last_curves(), backend.alone)


@pytest.mark.parametrize(
    ("order", "words"),
    [({"source": "apart"}, "read different batches"), ({"loss": "sum"}, "sum_over_batch_size")],
)
def test_what_cannot_be_shared_is_refused(
    backend: Backend, tmp_path: Path, order: dict[str, Any], words: str
) -> None:
    """A run that several slots would train otherwise fails at once, and says what to change."""
    with ranks(backend.parent, tmp_path, 2, **FIELDS) as trial:
        assert any(trial.train(2, **order))
        assert trial.chief.reports("training") == []
        assert words in trial.refusal()
