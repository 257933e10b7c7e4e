"""`rung submit`: what is sent, and what is refused."""

import os
from pathlib import Path

import msgspec

from cli.conftest import EXPERIMENT, Rung
from support import recorded_answers
from support.scripted_server import Scripted, json_answer, problem

ANSWER = {"experiment_id": "k3v9x2ab", "url": "/x", "warnings": [], "id": "k3v9x2ab"}


def test_submit(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """The file goes as it is, the folder packed; warnings go to standard error."""
    file, folder = tmp_path / "x.yaml", tmp_path / "code"
    file.write_bytes("name: Grün # as it is\n".encode())
    folder.mkdir()
    (folder / "train.py").write_text("print()")
    answer = ANSWER | {"warnings": ["slurm has no effect here"]}
    server.on("POST /experiments", json_answer(answer, 201))
    result = rung("submit", str(file), str(folder))
    assert (result.code, result.out) == (0, "Submitted experiment k3v9x2ab\n")
    assert result.err == "Warning: slurm has no effect here\n"
    assert "name: Grün # as it is\n".encode() in server.requests[0].body
    assert b"\x1f\x8b" in server.requests[0].body
    assert rung("submit", str(file), "--json").json == answer
    assert b"\x1f\x8b" not in server.requests[1].body


def test_a_template_is_named(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """With the place that the file goes to."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    server.on("POST /experiments", json_answer(ANSWER, 201))
    assert rung("submit", str(file), "--template", "quick", "--workspace", "vision").code == 0
    assert server.requests[-1].query == {"template": "quick", "workspace": "vision"}


def test_the_id_has_one_name(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """`id`, as in every other answer, also from a gateway of an earlier release."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    earlier = {"experiment_id": "k3v9x2ab", "url": "/x", "warnings": []}
    server.on("POST /experiments", json_answer(earlier, 201))
    assert rung("submit", str(file), "--json").json == earlier | {"id": "k3v9x2ab"}


def test_what_is_not_sent_is_said(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """What patterns leave out, and virtual environments, are listed by reason."""
    file, folder = tmp_path / "x.yaml", tmp_path / "code"
    file.write_text("name: x\n")
    for name in ["train.py", "env/pyvenv.cfg", "data/x.csv", *(f"{n}.log" for n in range(6))]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / ".rungignore").write_text("data/\n")
    server.on("POST /experiments", json_answer(ANSWER, 201))
    result = rung("submit", str(file), str(folder))
    assert result.err == (
        "Not sent: 0.log, 1.log, 2.log, 3.log and 2 more (.gitignore), data/ (.rungignore), env/"
        " (a virtual environment)\n"
    )
    assert result.out == "Submitted experiment k3v9x2ab\n"


def test_links_are_followed_if_asked(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """A link that leaves the folder is refused with the option, which packs its target."""
    file, folder = tmp_path / "x.yaml", tmp_path / "code"
    file.write_text("name: x\n")
    folder.mkdir()
    (folder / "train.py").symlink_to("../x.yaml")
    server.on("POST /experiments", json_answer(ANSWER, 201))
    refused = rung("submit", str(file), str(folder))
    assert refused.code == 2
    assert refused.err == (
        f"Error: {folder}/train.py is a link that leaves the folder (to ../x.yaml); pack what it"
        " points to with --follow-links, or name the link in .rungignore\n"
    )
    assert rung("submit", str(file), str(folder), "--follow-links").code == 0
    assert len(server.requests) == 1


def test_submit_and_follow(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """With -f, the exit code is the experiment's; with --json, two lines are printed."""
    file = tmp_path / "x.yaml"
    file.write_text("name: x\n")
    server.on("POST /experiments", json_answer(ANSWER, 201, **{"Rung-After": "token"}))
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment("errored")))
    result = rung("submit", str(file), "-f", "--json")
    first, second = result.out.splitlines()
    assert msgspec.json.decode(first) == ANSWER
    assert msgspec.json.decode(second)["state"] == "errored"
    assert result.code == 1
    shown = server.requested(EXPERIMENT)  # while it runs, and as it ended
    assert {it.headers["Rung-After"] for it in shown} == {"token"}  # whichever gateway answers


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
