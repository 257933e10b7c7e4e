"""`rung checkpoints`, `rung download`."""

from pathlib import Path

import pytest
from blake3 import blake3

from cli.conftest import EXPERIMENT, Rung
from support import recorded_answers
from support.scripted_server import Answer, Scripted, json_answer, problem


def test_checkpoints(server: Scripted, rung: Rung) -> None:
    """Deleted ones are listed when asked for; --json lists all."""
    items = [recorded_answers.checkpoint(), recorded_answers.checkpoint("gone", state="deleted")]
    answer = json_answer({"items": items, "next_cursor": None})
    server.on(f"{EXPERIMENT}/checkpoints", answer)
    assert "gone" not in rung("checkpoints", "k3v9x2ab").out
    assert "2.0 KiB" in rung("checkpoints", "k3v9x2ab").out
    assert "gone" in rung("checkpoints", "k3v9x2ab", "--all").out
    assert rung("checkpoints", "k3v9x2ab", "--json").json == {"items": items}


def test_a_narrow_terminal(server: Scripted, rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns ids are whole, and what other columns have is left out."""
    monkeypatch.setattr("rung.cli.output._PIPE_WIDTH", 80)
    metrics = {"batches": 1600.0, "epochs": 8.0, "records": 9429.0, "accuracy": 0.9375}
    more = {"metrics": metrics | {"val_loss": 0.20947}}
    items = [recorded_answers.checkpoint(f"k3v9x2ab.{it}.1.1600", **more) for it in range(3)]
    server.on(f"{EXPERIMENT}/checkpoints", json_answer({"items": items, "next_cursor": None}))
    heading, *lines = rung("checkpoints", "k3v9x2ab").out.splitlines()
    assert heading.split() == ["checkpoint", "state", "batches", "size", "metrics"]
    assert [line.split()[0] for line in lines if line[:1] != " "] == [it["id"] for it in items]
    assert "accuracy=0.9375" in lines[0]
    assert all(len(line) <= 80 for line in lines)


def test_download_chooses(server: Scripted, rung: Rung) -> None:
    """An experiment means its best checkpoint, a trial its best one that is left."""
    trial = recorded_answers.trial() | {
        "checkpoints": [
            recorded_answers.checkpoint("a", steps_completed=1600),
            recorded_answers.checkpoint("b", steps_completed=1700),
            recorded_answers.checkpoint("c", steps_completed=1800, state="deleted"),
        ],
        "best_checkpoint_id": "a",
        "best_checkpoint_note": None,
    }
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    server.on(f"{EXPERIMENT}/best", json_answer(recorded_answers.best()))
    assert rung("download", "k3v9x2ab.0").code == 4
    assert server.requests[-1].path == "/checkpoints/a"
    assert rung("download", "k3v9x2ab").code == 4
    assert server.requests[-1].path == "/checkpoints/k3v9x2ab.0.1.1600"
    server.on(f"{EXPERIMENT}/best", json_answer(recorded_answers.best(checkpoint=None)))
    result = rung("download", "k3v9x2ab")
    assert result.code == 6
    assert "rung checkpoints k3v9x2ab" in result.err


def test_download_says_what_came(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """One file is one file; a deleted checkpoint is exit code 4, not an empty folder."""
    name, data = "a.1.1.1", b"weights"
    digest = blake3(data).hexdigest()
    file = {"name": "model.pt", "size_bytes": len(data), "blake3": digest}
    shown = recorded_answers.checkpoint(name) | {"files": [file], "metadata": {}}
    server.on(f"/checkpoints/{name}", json_answer(shown))
    server.on(f"/checkpoints/{name}/file", Answer(200, data))
    folder = tmp_path / "there"
    assert rung("download", name, "-o", str(folder)).out.startswith("1 file (2.0 KiB) of")
    server.on(f"/checkpoints/{name}", json_answer(shown | {"state": "deleted", "files": []}))
    server.on(f"/checkpoints/{name}/archive", problem(410, "it is deleted"))
    result = rung("download", name, "-o", str(tmp_path / "gone"))
    assert (result.code, result.err) == (4, "Error: it is deleted\n")
    assert not (tmp_path / "gone").exists()


def test_download_says_which_one_came(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """A checkpoint that is not the one of the best value is not taken for it."""
    name, data = "a.1.1.1", b"weights"
    file = {
        "name": "model.pt",
        "size_bytes": len(data),
        "blake3": blake3(data).hexdigest(),
    }
    shown = recorded_answers.checkpoint(name)
    note = "the nearest, of step 5, where acc has no value; there is none of step 200"
    server.on(f"/checkpoints/{name}", json_answer(shown | {"files": [file], "metadata": {}}))
    server.on(f"/checkpoints/{name}/file", Answer(200, data))
    best = recorded_answers.best(checkpoint=shown, checkpoint_value=None, checkpoint_note=note)
    server.on(f"{EXPERIMENT}/best", json_answer(best))
    trial = recorded_answers.trial() | {
        "checkpoints": [shown],
        "best_checkpoint_id": name,
        "best_checkpoint_note": note,
    }
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    assert f"\nIt is {note}.\n" in rung("download", "k3v9x2ab", "-o", str(tmp_path / "a")).out
    assert f"\nIt is {note}.\n" in rung("download", "k3v9x2ab.0", "-o", str(tmp_path / "b")).out
    assert rung("download", "k3v9x2ab", "-o", str(tmp_path / "c"), "--json").json["note"] == note
