"""`rung code`, `rung diff`, `rung fork`: what ran, what differs, and once more with changes."""

import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import EXPERIMENT, Rung
from gateway.conftest import archive
from rung.config.code_folder import pack
from support import recorded_answers
from support.scripted_server import Answer, Scripted, json_answer, problem

OTHER = "/experiments/m4w8y2zz"
SOURCE = """\
name: digits  # as it is
hyperparameters: {lr: 0.1, mode: '1e-3'}
searcher: {name: random, metric: loss, max_trials: 20}
labels: [a, b]
"""


def _code(tmp_path: Path, name: str, files: dict[str, bytes]) -> bytes:
    """Return a code archive; `*` before a name makes it executable, `@` a link to its content."""
    folder = tmp_path / name
    folder.mkdir()
    for path, content in files.items():
        target = folder / path.lstrip("*@")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.startswith("@"):
            target.symlink_to(content.decode())
        else:
            target.write_bytes(content)
            target.chmod(0o755 if path.startswith("*") else 0o644)
    return pack(folder).data


def _serve(server: Scripted, path: str, code: bytes | None, **fields: Any) -> None:
    digest = None if code is None else str(len(code))
    answer = {**recorded_answers.experiment(), "id": path[-8:], "code_digest": digest, **fields}
    server.on(path, json_answer(answer))
    if code is not None:
        server.on(f"{path}/code", Answer(200, code))


def test_code_is_listed_printed_and_written(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """All of it or one file; bytes as they are, modes and links kept."""
    files = {"train.py": b"print()\n", "*run.sh": b"\x00\xff", "sub/x": b"1", "@link": b"sub/x"}
    _serve(server, EXPERIMENT, _code(tmp_path, "code", files))
    listed = rung("code", "k3v9x2ab", "--json").json["files"]
    assert [(it["name"], it["executable"], it["link"]) for it in listed] == [
        ("link", False, "sub/x"),
        ("run.sh", True, None),
        ("sub/x", False, None),
        ("train.py", False, None),
    ]
    assert "link -> sub/x" in rung("code", "k3v9x2ab").out
    assert rung("code", "k3v9x2ab", "train.py").out == "print()\n"
    missing = rung("code", "k3v9x2ab", "trian.py")
    assert (missing.code, "did you mean train.py" in missing.err) == (4, True)
    target = tmp_path / "new" / "folder"
    assert "4 files" in rung("code", "k3v9x2ab", "-o", str(target)).out
    assert (target / "run.sh").read_bytes() == b"\x00\xff"
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o755
    assert (target / "link").readlink() == Path("sub/x")
    again = rung("code", "k3v9x2ab", "-o", str(target))
    assert (again.code, "is not empty" in again.err) == (6, True)
    assert sorted(it.name for it in target.parent.iterdir()) == ["folder"]
    empty, link = tmp_path / "empty", tmp_path / "link"
    empty.mkdir()
    link.symlink_to(empty)
    assert rung("code", "k3v9x2ab", "-o", str(link)).code == 0
    assert (empty / "train.py").is_file()


def test_code_that_leaves_its_folder_is_not_written(
    server: Scripted, rung: Rung, tmp_path: Path
) -> None:
    """A server that was tampered with cannot write beside the folder."""
    _serve(server, EXPERIMENT, archive(**{"../evil": b"x"}))
    result = rung("code", "k3v9x2ab", "-o", str(tmp_path / "there" / "code"))
    assert result.code == 2
    assert list((tmp_path / "there").iterdir()) == []


def test_an_experiment_without_code(server: Scripted, rung: Rung) -> None:
    """Exit code 4, as for all that is not there."""
    _serve(server, EXPERIMENT, None)
    result = rung("code", "k3v9x2ab")
    assert (result.code, "without code" in result.err) == (4, True)


def test_diff(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """Fields that differ, added, removed and changed files; exit code 1, or 0 if none do."""
    ours = {"train.py": b"a\nb\n", "gone.py": b"x", "same": b"1", "run": b"1", "data": b"\0a"}
    theirs = {"train.py": b"a\nc\n", "new.py": b"y\n", "same": b"1", "*run": b"1", "data": b"\0b"}
    config = {"hyperparameters": {"lr": {"val": 0.1}}, "name": "x", "seed": 1}
    changed = {"hyperparameters": {"lr": {"val": 0.2}}, "name": "x", "pool": None}
    _serve(server, EXPERIMENT, _code(tmp_path, "a", ours), config=config)
    _serve(server, OTHER, _code(tmp_path, "b", theirs), config=changed)
    result = rung("diff", "k3v9x2ab", "m4w8y2zz", "--json")
    assert result.code == 1
    assert result.json["config"] == [
        {"path": "hyperparameters.lr.val", "a": 0.1, "b": 0.2},
        {"path": "seed", "a": 1},
        {"path": "pool", "b": None},
    ]
    assert [(it["name"], it["change"]) for it in result.json["code"]] == [
        ("data", "changed"),
        ("gone.py", "removed"),
        ("new.py", "added"),
        ("run", "changed"),
        ("train.py", "changed"),
    ]
    shown = rung("diff", "k3v9x2ab", "m4w8y2zz").out
    assert "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n" in shown
    assert "-x\n\\ No newline at end of file\n" in shown
    assert "run was plain, is executable\n" in shown
    assert "Files a/data and b/data differ" in shown
    same = rung("diff", "k3v9x2ab", "k3v9x2ab")
    assert (same.code, "the same configuration and code" in same.out) == (0, True)


def test_diff_of_large_files(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """Long ones are compared unless that takes minutes, because their lines repeat a lot."""
    lines = [f"{number}\n" for number in range(50_000)]
    chance = random.Random(1)  # noqa: S311 - repeatable, not secret
    ours, theirs = (
        "".join(f"{chance.randrange(1000)}\n" for _ in range(200_000)).encode() for _ in "ab"
    )
    first = {"rows": "".join(lines).encode(), "numbers": ours}
    second = {"rows": "".join([*lines, "x\n"]).encode(), "numbers": theirs}
    _serve(server, EXPERIMENT, _code(tmp_path, "a", first))
    _serve(server, OTHER, _code(tmp_path, "b", second))
    shown = rung("diff", "k3v9x2ab", "m4w8y2zz").out
    assert "Files a/numbers and b/numbers differ; they are no text, or too long" in shown
    assert " 49999\n+x\n" in shown


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what sets the editor: a shell script that gets the file as $1."""

    def use(script: str) -> None:
        path = tmp_path / "editor.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("EDITOR", str(path))

    monkeypatch.delenv("VISUAL", raising=False)
    return use


def _forkable(server: Scripted, tmp_path: Path) -> bytes:
    code = _code(tmp_path, "code", {"train.py": b"1"})
    _serve(server, EXPERIMENT, code, source=SOURCE)
    answer = {"experiment_id": "m4w8y2zz", "url": "/x", "warnings": []}
    server.on("POST /experiments", json_answer(answer, 201))
    return code


def test_fork_with_an_editor(
    server: Scripted, rung: Rung, tmp_path: Path, editor: Callable[[str], None]
) -> None:
    """What the editor saves is submitted, with the same code and the parent's id."""
    code = _forkable(server, tmp_path)
    editor("sed -i s/20/40/ $1; touch -d '+1 hour' $1")
    assert rung("fork", "k3v9x2ab").out == "Submitted experiment m4w8y2zz\n"
    [request] = server.requested("/experiments")
    assert request.query == {"parent": "k3v9x2ab"}
    assert b"max_trials: 40" in request.body
    assert b"# as it is" in request.body
    assert code in request.body


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("true", "nothing was changed"),
        ("touch -d '+1 hour' $1", "nothing was changed"),
        ("sed -i s/20/40/ $1; touch -d '+1 hour' $1; exit 3", "Editing failed"),
        ("printf '\\377' > $1; touch -d '+1 hour' $1", "is not UTF-8"),
    ],
)
def test_a_fork_without_a_change_is_not_submitted(  # noqa: PLR0917 - fixtures
    server: Scripted,
    rung: Rung,
    tmp_path: Path,
    editor: Callable[[str], None],
    script: str,
    words: str,
) -> None:
    """Not saved, saved unchanged, or an editor that fails: exit code 6."""
    _forkable(server, tmp_path)
    editor(script)
    result = rung("fork", "k3v9x2ab")
    assert (result.code, words in result.err) == (6, True)
    assert server.requested("/experiments") == []


def test_a_fork_that_is_refused_is_kept(
    server: Scripted, rung: Rung, tmp_path: Path, editor: Callable[[str], None]
) -> None:
    """The edited text is not lost, and the problems are named; exit code 2."""
    _forkable(server, tmp_path)
    errors = [{"path": "searcher.max_trials", "message": "must be 1 or more", "line": 3}]
    server.on("POST /experiments", problem(422, "one problem", errors=errors))
    editor("sed -i s/20/0/ $1; touch -d '+1 hour' $1")
    result = rung("fork", "k3v9x2ab")
    assert result.code == 2
    assert "searcher.max_trials (line 3): must be 1 or more" in result.err
    kept = Path(result.err.split("kept in ")[1].split()[0])
    assert "max_trials: 0" in kept.read_text()
    kept.unlink()


@pytest.mark.parametrize("text", ["", "train.py", '{"name":"x"}'])
def test_what_is_saved_is_no_path(
    server: Scripted, rung: Rung, tmp_path: Path, editor: Callable[[str], None], text: str
) -> None:
    """One line, or none, is sent as well: it is for the gateway to refuse."""
    _forkable(server, tmp_path)
    editor(f"printf '{text}' > $1; touch -d '+1 hour' $1")
    assert rung("fork", "k3v9x2ab").code == 0
    [request] = server.requested("/experiments")
    assert f"\r\n\r\n{text}\r\n".encode() in request.body


def test_fork_for_scripts(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """--set changes fields, makes those that are absent, and keeps the types of the others."""
    _forkable(server, tmp_path)
    changes = ["searcher.max_trials=40", "labels.1=c", "resources.slots_per_trial=2", "lr=1e-3"]
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "other.py").write_text("2")
    sets = [word for change in changes for word in ("--set", change)]
    assert rung("fork", "k3v9x2ab", *sets, "--code", str(folder)).code == 0
    body = server.requested("/experiments")[0].body
    assert (
        b'name: digits\nhyperparameters:\n  lr: 0.1\n  mode: "1e-3"\nsearcher:\n  name: random\n'
        b"  metric: loss\n  max_trials: 40\nlabels:\n- a\n- c\nresources:\n  slots_per_trial: 2\n"
        b"lr: 0.001\n"
    ) in body
    assert pack(folder).data in body


def test_a_new_hyperparameter_is_named(server: Scripted, rung: Rung, tmp_path: Path) -> None:
    """It may be a misspelt one; parts of one that is there are none."""
    width = {"type": "int", "minval": 1, "maxval": 9}
    hyperparameters = {"lr": {"type": "const", "val": 0.1}, "net": {"width": width}}
    code = _forkable(server, tmp_path)
    _serve(server, EXPERIMENT, code, source=SOURCE, config={"hyperparameters": hyperparameters})
    changes = ["net.widht=3", "momentum=0.9", "lr=1", "net.width={type: int}", "searcher.seed=1"]
    paths = [change if "searcher" in change else f"hyperparameters.{change}" for change in changes]
    result = rung("fork", "k3v9x2ab", *(word for path in paths for word in ("--set", path)))
    assert result.code == 0
    assert [line for line in result.err.splitlines() if "Warning" in line] == [
        "Warning: hyperparameters.net.widht is a new hyperparameter; did you mean `width`?",
        "Warning: hyperparameters.momentum is a new hyperparameter",
    ]


@pytest.mark.parametrize(
    "change", ["max_trials", "a..b=1", "labels.7=x", "name.x=1", "x=[1", "x=1\ny: 2", "labels.x=1"]
)
def test_changes_that_make_no_sense(
    server: Scripted, rung: Rung, tmp_path: Path, change: str
) -> None:
    """Refused with the field, before anything is sent; exit code 2."""
    _forkable(server, tmp_path)
    result = rung("fork", "k3v9x2ab", "--set", change)
    assert (result.code, "--set" in result.err) == (2, True)
    assert server.requested("/experiments") == []
