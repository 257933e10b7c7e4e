"""Adding a search method takes one new module and one line of the table (docs/EXTENDING.md)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rung.methods.table

# 160 simulated searches.
pytestmark = [pytest.mark.sim, pytest.mark.timeout(400)]

_HERE = Path(__file__).parent
_METHODS = Path(rung.methods.table.__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Add the method to a copy of the methods; return what searches with it come to."""
    package = tmp_path_factory.mktemp("extended") / "rung" / "methods"
    shutil.copytree(_METHODS, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_HERE / "new_method" / "copying.py", package)
    table = package / "table.py"
    lines = table.read_text().splitlines(keepends=True)
    lines.insert(lines.index('    "hyperband",\n') + 1, '    "copying",\n')
    table.write_text("".join(lines))
    outputs = [_drive(package.parents[1], seed) for seed in ("1", "2")]
    assert outputs[0] == outputs[1], "processes that hash differently decide differently"
    drawn: dict[str, Any] = msgspec.json.decode(outputs[0])
    return drawn


def _drive(folder: Path, hash_seed: str) -> bytes:
    path = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [sys.executable, str(_HERE / "new_method" / "drive.py")],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_a_trial_goes_on_with_anothers_weights(found: dict[str, Any]) -> None:
    """It is on record whose weights and which hyperparameters it has; its run gets both."""
    by_hand = found["by_hand"]
    promoted = by_hand["promoted"]
    assert (promoted["parent"], promoted["restore"]) == ("k3v9x2ab.0", ["c0"])
    assert by_hand["restore"] == [["c0"]]
    assert by_hand["hparams"] == [promoted["hparams"]]
    ratio = promoted["hparams"]["lr"] / by_hand["donor"]["lr"]
    assert min(abs(ratio - 0.8), abs(ratio - 1.25)) < 1e-9


def test_a_donors_checkpoint_is_held(found: dict[str, Any]) -> None:
    """While a run may start from it, it is not released, also if the donor has newer ones.

    Once the trial that took its weights has a checkpoint of its own, it is.
    """
    by_hand = found["by_hand"]
    assert by_hand["restarted"] == [["c0"]]
    assert by_hand["released"] == []
    assert by_hand["released_then"] == ["c0"]


def test_its_options_are_those_of_the_experiment_file(found: dict[str, Any]) -> None:
    """The file takes them, with limits and descriptions, and says what is wrong."""
    from_file = found["from_file"]
    assert from_file["searcher"]["population"] == 10
    assert from_file["searcher"]["interval"] == 2
    assert from_file["refused"][0].startswith("interval (9) must be at most max_time (4)")
    assert from_file["refused"][1].startswith("searcher.interval must be at least 1")
    assert from_file["described"]


def test_it_can_be_previewed(found: dict[str, Any]) -> None:
    """A search in memory runs to its end, copies, and releases every checkpoint."""
    from_file = found["from_file"]
    assert from_file["ended"] == "10 trials: 10 completed"
    assert from_file["copies"] > 0
    assert from_file["released"] == 20


def test_it_is_simulated(found: dict[str, Any]) -> None:
    """With the real processors, under faults: searches end, copy, audit, and leave no holds."""
    simulated = found["simulated"]
    assert simulated["states"] == ["completed"]
    assert sum(copies > 0 for copies in simulated["copies"]) > len(simulated["copies"]) / 2
    assert max(simulated["retained"]) <= 2 * 5
