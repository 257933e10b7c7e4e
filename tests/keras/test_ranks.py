"""Keras on several slots: the curve of one, whichever rank is killed."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
KILLS = [(1, before(2)), (0, before(5)), (1, after(5)), (0, before(9)), (1, out(3))]
"""Which rank dies when: within a step, behind one, on the way out."""
MODULE = "frontdoors.keras_ranks"
RUNNER = "frontdoors.ranks_runner"


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator["tuple[str, subprocess.Popen[str]]"]:
    """A backend, and a parent that has Keras on it and forks ranks."""
    with parent(MODULE, {"KERAS_BACKEND": request.param}, runner=RUNNER) as process:
        yield request.param, process


def trained(process: "subprocess.Popen[str]", folder: Path, size: int, **order: Any) -> Ranks:
    """Return a trial that was trained on so many ranks, and nobody killed."""
    with ranks(process, folder, size, **FIELDS) as trial:
        assert trial.train(size, **order) == [0] * size
        return trial


def assert_close(found: Any, wanted: Any) -> None:
    """Hold two curves against each other, to within the error of sums in another order."""
    for kind, curve in wanted.items():
        assert found[kind].keys() == curve.keys()
        for step, values in curve.items():
            assert found[kind][step] == pytest.approx(values, rel=1e-4, abs=1e-6), (kind, step)


def cases(name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the kinds of data to try on a backend, and on how many slots."""
    return [("few", (2, 4)), ("dataset" if name == "tensorflow" else "loader", (2,))]


def test_any_number_of_slots_gives_the_same_curve(
    backend: "tuple[str, subprocess.Popen[str]]", tmp_path: Path
) -> None:
    """Losses, metrics and validations are those of one slot, and the same on all ranks."""
    name, process = backend
    for source, sizes in cases(name):
        wanted = trained(process, tmp_path / source, 1, source=source).curves()
        assert list(wanted["training"]) == list(range(1, STEPS + 1))
        for size in sizes:
            trial = trained(process, tmp_path / f"{source}-{size}", size, source=source)
            assert_close(trial.curves(), wanted)
            for rank in range(1, size):
                assert trial.result(rank) == trial.result(0)


def test_no_kill_of_a_rank_shows(
    backend: "tuple[str, subprocess.Popen[str]]", tmp_path: Path
) -> None:
    """With noise everywhere, either rank killed: curves, weights and logs are the same bits."""
    name, process = backend
    source = "dataset" if name == "tensorflow" else "noisy"
    order: dict[str, Any] = {"noise": True, "source": source}
    wanted = trained(process, tmp_path / "calm", 2, **order)
    with ranks(process, tmp_path / "storm", 2, **FIELDS) as trial:
        for victim, moment in KILLS:
            assert (
                trial.train(2, victim=victim, moment=moment, **order)[victim] == -signal.SIGKILL
            ), moment
        assert trial.train(2, **order) == [0, 0]
        assert trial.curves() == wanted.curves()
        for rank in (0, 1):
            assert trial.result(rank)["weights"] == wanted.result(0)["weights"]


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_a_checkpoint_of_n_slots_resumes_on_m(
    backend: "tuple[str, subprocess.Popen[str]]", tmp_path: Path, first: int, second: int
) -> None:
    """Killed on `first` slots and continued on `second`, the curve is that of one slot."""
    _, process = backend
    wanted = trained(process, tmp_path / "alone", 1)
    with ranks(process, tmp_path / "moved", 2, **FIELDS) as trial:
        assert trial.train(first, victim=0, moment=before(6))[0] == -signal.SIGKILL
        assert trial.train(second) == [0] * second
        assert_close(trial.last_curves(), wanted.curves())


@pytest.mark.parametrize(
    ("order", "words"),
    [({"source": "apart"}, "read different batches"), ({"loss": "sum"}, "sum_over_batch_size")],
)
def test_what_cannot_be_shared_is_refused(
    backend: "tuple[str, subprocess.Popen[str]]",
    tmp_path: Path,
    order: dict[str, Any],
    words: str,
) -> None:
    """A run that several slots would train otherwise fails at once, and says what to change."""
    _, process = backend
    with ranks(process, tmp_path, 2, **FIELDS) as trial:
        assert any(trial.train(2, **order))
        assert trial.chief.reports("training") == []
        assert words in trial.refusal()
