"""`rung tensorboard` writes an experiment's curves where TensorBoard finds them."""

import hashlib
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import EXPERIMENT, Rung
from client import recorded
from client.scripted import Answer, Scripted, json_answer
from rung.cli.commands.tensorboard.event_file import NAME


def _curves(**curves: list[list[Any]]) -> dict[str, Any]:
    return {
        "experiment_id": "k3v9x2ab",
        "kind": "validation",
        "name": "error",
        "curves": {f"k3v9x2ab.{trial[1:]}": points for trial, points in curves.items()},
        "names": [{"kind": "validation", "name": "error"}, {"kind": "training", "name": "loss"}],
    }


@pytest.fixture
def curves(server: Scripted) -> Scripted:
    """Return a server with an experiment of two trials that ended."""
    server.on(EXPERIMENT, json_answer(recorded.experiment()))
    server.on(
        f"{EXPERIMENT}/metrics",
        json_answer(_curves()),
        json_answer(_curves(t0=[[1, 0.5, 1000], [2, "NaN", 2000]], t1=[[1, 0.25, 1500]])),
        json_answer(_curves(t0=[[1, 3.0, 1000]])),
    )
    server.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": [], "next_cursor": None}))
    return server


def test_every_metric_of_every_trial_is_written(
    curves: Scripted, tmp_path: Path, rung: Rung
) -> None:
    """Each trial has a folder, each metric its kind before its name; TensorBoard reads them."""
    folder = tmp_path / "board"
    result = rung("tensorboard", "k3v9x2ab", "--folder", str(folder), "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json == {"folder": str(folder), "trials": 2, "points": 4, "files": 0}
    asked = [(r.query["kind"], r.query["name"]) for r in curves.requested(f"{EXPERIMENT}/metrics")]
    assert asked[1:] == [("validation", "error"), ("training", "loss")]
    accumulator: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="not installed: tensorboard",
    )
    first = accumulator.EventAccumulator(str(folder / "k3v9x2ab.0")).Reload()
    assert first.Tags()["scalars"] == ["validation/error", "training/loss"]
    errors = [(point.step, point.wall_time) for point in first.Scalars("validation/error")]
    assert errors == [(1, 1.0), (2, 2.0)]
    assert [point.value for point in first.Scalars("training/loss")] == [3.0]
    second = accumulator.EventAccumulator(str(folder / "k3v9x2ab.1")).Reload()
    assert [point.value for point in second.Scalars("validation/error")] == [0.25]


def test_what_trials_wrote_themselves_lies_beside_it(
    curves: Scripted, tmp_path: Path, rung: Rung
) -> None:
    """From each trial's newest checkpoint that is there, and nothing else of it."""
    old, new, gone = (f"k3v9x2ab.1.1.{step}" for step in (4, 8, 9))
    items = [recorded.checkpoint(name, trial_id="k3v9x2ab.1") for name in (old, new)]
    items.append(recorded.checkpoint(gone, trial_id="k3v9x2ab.1", state="deleted"))
    curves.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": items, "next_cursor": None}))
    trace = b"a trace"
    files = [
        {"name": name, "size_bytes": len(trace), "sha256": hashlib.sha256(trace).hexdigest()}
        for name in ("model.pt", "tensorboard/plugins/node.pt.trace.json.gz")
    ]
    listed = {"file_count": len(files), "files": files, "metadata": {}}
    curves.on(f"/checkpoints/{new}", json_answer(items[1] | listed))
    curves.on(f"/checkpoints/{new}/file", Answer(200, trace))
    folder = tmp_path / "board"
    result = rung("tensorboard", "k3v9x2ab", "--folder", str(folder), "--json")
    assert (result.code, result.err) == (0, "")
    assert result.json == {"folder": str(folder), "trials": 2, "points": 4, "files": 1}
    there = folder / "k3v9x2ab.1" / "plugins" / "node.pt.trace.json.gz"
    assert there.read_bytes() == trace
    asked = [request.query["name"] for request in curves.requested(f"/checkpoints/{new}/file")]
    assert asked == [files[1]["name"]]
    assert sorted(path.name for path in folder.iterdir()) == ["k3v9x2ab.0", "k3v9x2ab.1"]


def test_without_tensorboard_it_says_how_to_get_it(
    curves: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rung: Rung
) -> None:
    """The files are there all the same, and the folder is named."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else found(name)
    )
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.chdir(tmp_path)
    result = rung("tensorboard", "k3v9x2ab")
    folder = Path("rung-tensorboard") / "k3v9x2ab"
    assert result.code == 0
    assert f"4 points of 2 trials are in {folder}" in result.out
    assert "pip install tensorboard" in result.err
    assert f"tensorboard --logdir {folder}" in result.err
    assert (folder / "k3v9x2ab.1" / NAME).exists()
