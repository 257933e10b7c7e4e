"""`rung checkpoints`, `rung download`."""

import hashlib
from pathlib import Path

from cli.conftest import EXPERIMENT, Rung
from client import recorded
from client.scripted import Answer, Scripted, json_answer, problem


def test_checkpoints(server: Scripted, rung: Rung) -> None:
    """Deleted ones are listed when asked for; --json lists all."""
    items = [recorded.checkpoint(), recorded.checkpoint("gone", state="deleted")]
    answer = json_answer({"items": items, "next_cursor": None})
    server.on(f"{EXPERIMENT}/checkpoints", answer)
    assert "gone" not in rung("checkpoints", "k3v9x2ab").out
    assert "2.0 KiB" in rung("checkpoints", "k3v9x2ab").out
    assert "gone" in rung("checkpoints", "k3v9x2ab", "--all").out
    assert rung("checkpoints", "k3v9x2ab", "--json").json == {"items": items}


def test_download_chooses(server: Scripted, rung: Rung) -> None:
    """An experiment means its best checkpoint, a trial its best one that is left."""
    trial = recorded.trial() | {
        "checkpoints": [
            recorded.checkpoint("a", steps_completed=1600),
            recorded.checkpoint("b", steps_completed=1700),
            recorded.checkpoint("c", steps_completed=1800, state="deleted"),
        ]
    }
    server.on("/trials/k3v9x2ab.0", json_answer(trial))
    server.on(f"{EXPERIMENT}/best", json_answer(recorded.best()))
    assert rung("download", "k3v9x2ab.0").code == 4
    assert server.requests[-1].path == "/checkpoints/a"
    assert rung("download", "k3v9x2ab").code == 4
    assert server.requests[-1].path == "/checkpoints/k3v9x2ab.0.1.1600"
    server.on(f"{EXPERIMENT}/best", json_answer(recorded.best(checkpoint=None)))
    result = rung("download", "k3v9x2ab")
    assert result.code == 6
    assert "rung checkpoints k3v9x2ab" in result.err


def test_download_says_what_came(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """One file is one file; a deleted checkpoint is exit code 4, not an empty folder."""
    name, data = "a.1.1.1", b"weights"
    digest = hashlib.sha256(data).hexdigest()
    file = {"name": "model.pt", "size_bytes": len(data), "sha256": digest}
    shown = recorded.checkpoint(name) | {"files": [file], "metadata": {}}
    server.on(f"/checkpoints/{name}", json_answer(shown))
    server.on(f"/checkpoints/{name}/file", Answer(200, data))
    folder = tmp_path / "there"
    assert rung("download", name, "-o", str(folder)).out.startswith("1 file (2.0 KiB) of")
    server.on(f"/checkpoints/{name}", json_answer(shown | {"state": "deleted", "files": []}))
    server.on(f"/checkpoints/{name}/archive", problem(410, "it is deleted"))
    result = rung("download", name, "-o", str(tmp_path / "gone"))
    assert (result.code, result.err) == (4, "Error: it is deleted\n")
    assert not (tmp_path / "gone").exists()
