"""`rung submit`: what is sent, and what is refused."""

import os
from pathlib import Path

import msgspec

from cli.conftest import EXPERIMENT, Rung
from client import recorded
from client.scripted import Scripted, json_answer, problem


def test_submit(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """The file goes as it is, the folder packed; warnings go to standard error."""
    file, folder = tmp_path / "x.yaml", tmp_path / "code"
    file.write_bytes("name: Grün # as it is\n".encode())
    folder.mkdir()
    (folder / "train.py").write_text("print()")
    answer = {"experiment_id": "k3v9x2ab", "url": "/x", "warnings": ["slurm has no effect here"]}
    server.on("POST /experiments", json_answer(answer, 201))
    result = rung("submit", str(file), str(folder))
    assert (result.code, result.out) == (0, "Submitted experiment k3v9x2ab\n")
    assert result.err == "Warning: slurm has no effect here\n"
    assert "name: Grün # as it is\n".encode() in server.requests[0].body
    assert b"\x1f\x8b" in server.requests[0].body
    assert rung("submit", str(file), "--json").json == answer
    assert b"\x1f\x8b" not in server.requests[1].body


def test_submit_and_follow(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """With -f, the exit code is the experiment's; with --json, two lines are printed."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    answer = {"experiment_id": "k3v9x2ab", "url": "/x", "warnings": []}
    server.on("POST /experiments", json_answer(answer, 201, **{"Rung-After": "token"}))
    server.on(EXPERIMENT, json_answer(recorded.experiment("errored")))
    result = rung("submit", str(file), "-f", "--json")
    first, second = result.out.splitlines()
    assert msgspec.json.decode(first) == answer
    assert msgspec.json.decode(second)["state"] == "errored"
    assert result.code == 1
    (shown,) = server.requested(EXPERIMENT)
    assert shown.headers["Rung-After"] == "token"  # whichever gateway it is that shows it


def test_a_file_that_is_refused(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """Every problem is printed with path and line; exit code 2."""
    file = tmp_path / "x.yaml"
    file.write_text("serch: 1\n")
    errors = [
        {"path": "serch", "message": "did you mean `searcher`?", "line": 1},
        {"path": "entrypoint", "message": "is required"},
    ]
    server.on("POST /experiments", problem(422, "two problems", errors=errors))
    result = rung("submit", str(file))
    assert result.code == 2
    assert result.err == (
        "Error: refused, with 2 problems:\n"
        "  serch (line 1): did you mean `searcher`?\n"
        "  entrypoint: is required\n"
    )


def test_code_that_is_refused(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """A code folder that cannot be packed is exit code 2, and nothing is sent."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    folder = tmp_path / "code"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    result = rung("submit", str(file), str(folder))
    assert result.code == 2
    assert "pipe is a device, pipe or socket" in result.err
    assert server.requests == []
