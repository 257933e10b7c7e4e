"""`rung tensorboard`: event files of curves, and the files that trials wrote themselves."""

import importlib.util
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from cli.conftest import EXPERIMENT, Rung
from rung.cli.commands.tensorboard import NAME, BoardFiles, EventFile, Scalar, crc32c
from rung.client import AsyncClient
from support import recorded_answers
from support.scripted_server import TOKEN, Answer, Scripted, json_answer, problem

pytestmark = pytest.mark.processes

EVENTS = "tensorboard/events"
Offer = Callable[..., dict[str, Any]]
POINTS = [
    Scalar("validation/loss", 1, 1_700_000_000.25, 0.5),
    Scalar("validation/loss", 300, 1_700_000_001.0, math.nan),
    Scalar("training/größe", 1 << 40, 1_700_000_002.0, -1e300),
]


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
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment()))
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
    items = [recorded_answers.checkpoint(name, trial_id="k3v9x2ab.1") for name in (old, new)]
    items.append(recorded_answers.checkpoint(gone, trial_id="k3v9x2ab.1", state="deleted"))
    curves.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": items, "next_cursor": None}))
    trace = b"a trace"
    files = [
        {"name": name, "size_bytes": len(trace), "blake3": blake3(trace).hexdigest()}
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


@pytest.mark.usefixtures("curves")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_tensorboard_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    """Nothing holds its port after a signal that ends the command."""
    package, pid = tmp_path / "tensorboard", tmp_path / "pid"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text(
        "import os, pathlib, time\n"
        f"new = pathlib.Path({str(pid)!r} + '.new')\n"
        f"new.write_text(str(os.getpid())), new.rename({str(pid)!r})\n"
        "time.sleep(600)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "rung.cli", "tensorboard", "k3v9x2ab", "--folder", "t"]
    with subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}) as process:
        while not pid.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.fixture
def offer(server: Scripted) -> Offer:
    """Return what offers a checkpoint with one file, and lists those that it is given."""

    def offer(trial: int, steps: int, data: bytes, *others: dict[str, Any]) -> dict[str, Any]:
        trial_id = f"k3v9x2ab.{trial}"
        checkpoint = recorded_answers.checkpoint(
            f"{trial_id}.1.{steps}", trial_id=trial_id, steps_completed=steps
        )
        digest = blake3(data).hexdigest()
        file = {"name": EVENTS, "size_bytes": len(data), "blake3": digest}
        path = f"/checkpoints/{checkpoint['id']}"
        server.on(path, json_answer(checkpoint | {"files": [file], "metadata": {}}))
        server.on(f"{path}/file", Answer(200, data))
        items = {"items": [*others, checkpoint], "next_cursor": None}
        server.on(f"{EXPERIMENT}/checkpoints", json_answer(items))
        return checkpoint

    return offer


def client_of(server: Scripted) -> AsyncClient:
    """Return a client of the server."""
    return AsyncClient(server.url, TOKEN, patience_s=0.0)


async def test_a_file_that_grew_stays_the_same_file(
    server: Scripted, offer: Offer, tmp_path: Path
) -> None:
    """Who reads it sees what came; one that became another takes its place."""
    place = tmp_path / "k3v9x2ab.0" / "events"
    async with client_of(server) as client:
        files = BoardFiles(client, "k3v9x2ab", tmp_path)
        offer(0, 1, b"one")
        await files.download()
        with place.open("rb") as reader:
            assert reader.read() == b"one"
            offer(0, 2, b"one two")
            await files.download()
            assert reader.read() == b" two"
        offer(0, 3, b"another")
        await files.download()
        assert place.read_bytes() == b"another"
        offer(0, 4, b"less")
        await files.download()
    assert place.read_bytes() == b"less"
    assert files.count == 1


async def test_an_older_checkpoint_replaces_nothing(
    server: Scripted, offer: Offer, tmp_path: Path
) -> None:
    """Neither one that is listed later, nor the last that is left."""
    async with client_of(server) as client:
        files = BoardFiles(client, "k3v9x2ab", tmp_path)
        older = offer(0, 1, b"one")
        newer = offer(0, 2, b"one two")
        listed = {"items": [newer, older], "next_cursor": None}
        server.on(f"{EXPERIMENT}/checkpoints", json_answer(listed))
        await files.download()
        offer(0, 1, b"one")
        await files.download()
    assert (tmp_path / "k3v9x2ab.0" / "events").read_bytes() == b"one two"


async def test_what_fails_is_told_once_and_tried_again(
    server: Scripted, offer: Offer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of other trials come all the same."""
    async with client_of(server) as client:
        files = BoardFiles(client, "k3v9x2ab", tmp_path)
        first = offer(0, 1, b"one")
        offer(1, 1, b"other", first)
        server.on(f"/checkpoints/{first['id']}/file", problem(410, "it is gone"))
        await files.download()
        await files.download()
        assert (tmp_path / "k3v9x2ab.1" / "events").read_bytes() == b"other"
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 1
        assert "k3v9x2ab.0" in told[0]
        assert "it is gone" in told[0]
        server.on(f"/checkpoints/{first['id']}/file", Answer(200, b"one"))
        await files.download()
    assert (tmp_path / "k3v9x2ab.0" / "events").read_bytes() == b"one"


def test_checksums() -> None:
    """The checksum is Castagnoli's, by its published example."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


def test_tensorboards_reader_takes_them(tmp_path: Path) -> None:
    """Steps, times and values come back; what no float holds becomes infinite."""
    reader: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader",
        reason="not installed: tensorboard",
    )
    with EventFile(tmp_path / "trial") as file:
        for point in POINTS:
            file.add(point)
    loaded = list(reader.LegacyEventFileLoader(str(tmp_path / "trial" / NAME)).Load())
    assert loaded[0].file_version == "brain.Event:2"
    found = [(event.summary.value[0].tag, event.step, event.wall_time) for event in loaded[1:]]
    assert found == [point[:3] for point in POINTS]
    first, second, third = (event.summary.value[0].simple_value for event in loaded[1:])
    assert first == 0.5
    assert math.isnan(second)
    assert third == -math.inf


def test_a_file_is_written_anew(tmp_path: Path) -> None:
    """The same points make the same bytes, whatever was there before."""
    contents = []
    for _ in range(2):
        with EventFile(tmp_path) as file:
            file.add(POINTS[0])
            file.flush()
            contents.append((tmp_path / NAME).read_bytes())
    assert contents[0] == contents[1]
