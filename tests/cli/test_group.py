"""The command `rung` itself: its help, its names, its errors."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from cli.conftest import EXPERIMENT, Rung
from rung.cli.group import COMMANDS
from rung.cli.group import rung as group
from support import recorded_answers
from support.scripted_server import Scripted, json_answer


def test_help_names_every_command_and_exit_code(rung: Rung) -> None:
    """Help lists what there is, without importing it."""
    result = rung("--help")
    assert result.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.out
    for code in ("0", "1", "2", "3", "4", "5", "6", "130"):
        assert f"\n    {code}  " in result.out


def test_help_imports_no_command() -> None:
    """Help comes before anything that takes long to import: no HTTP, no models, no tables."""
    program = (
        "import sys; from rung.cli.__main__ import run; run(['--help']);"
        "sys.exit(','.join({'aiohttp', 'pydantic', 'rich', 'sqlite3', 'yaml'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert result.stdout.startswith("Usage: rung")
    assert result.stderr.strip() in {"", "None"}


_HEAVY = (
    "aiohttp", "blake3", "email", "psutil", "pydantic", "rich", "rung.config", "rung.ledger",
    "rung.runtime", "rung.storage", "shutil", "sqlite3", "structlog", "tenacity", "yaml", "yarl",
)  # fmt: skip


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("show", "k3v9x2ab")])
def test_what_asks_the_server_imports_little(arguments: tuple[str, ...], server: Scripted) -> None:
    """A command that prints an answer is there at once: none of what takes long is imported."""
    server.on(EXPERIMENT, json_answer(recorded_answers.experiment()))
    items: dict[str, Any] = {
        "/experiments": recorded_answers.summary(),
        f"{EXPERIMENT}/checkpoints": recorded_answers.checkpoint("k3v9x2ab.0.1.1600"),
        f"{EXPERIMENT}/trials": recorded_answers.trial(),
    }
    for path, item in items.items():
        server.on(path, json_answer({"items": [item], "next_cursor": None}))
    program = (
        f"import sys; from rung.cli.__main__ import run; code = run({list(arguments)});"
        f"sys.exit(' '.join(sorted({set(_HEAVY)} & set(sys.modules))) or code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "k3v9x2ab" in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there(name: str, rung: Rung) -> None:
    """Each name leads to a command with a help of its own, which begins as the list says."""
    context = click.Context(group)
    command = group.get_command(context, name)
    assert command is not None
    assert command.name == name
    result = rung(name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: rung {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_in_json(name: str) -> None:
    """But those that serve, and those whose one answer a script takes as it is."""
    context = click.Context(group)
    command = group.get_command(context, name)
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    plain = {"service", "completion", "report", "checkpoint"}
    for each in commands:
        assert each is not None
        options = [option for parameter in each.params for option in parameter.opts]
        assert ("--json" in options) == (name not in plain), each.name


def test_what_the_system_refuses_is_no_verdict(rung: Rung, tmp_path: Path) -> None:
    """Its reason is said in a line, with the file; exit code 1 would be an experiment's."""
    file = tmp_path / "file"
    file.touch()
    result = rung("down", "--data", str(file))
    assert result.code == 6
    assert result.err == f"Error: {file}: Not a directory\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shw"], "Did you mean `show`?"),
        (["xyzzy"], "no command `xyzzy`"),
        (["show"], "Missing argument"),
        (["show", "a", "b"], "unexpected extra argument"),
        (["list", "--limit", "0"], "0 is not in the range"),
        (["list", "--state", "odd"], "is not one of"),
        (["list", "--limt", "5"], "--limit"),
        (["submit", "nothing.yaml"], "does not exist"),
        (["completion", "tcsh"], "is not one of"),
        (["ledger", "xyzzy"], "No such command"),
        ([], "Usage: rung"),
        (["ledger"], "Usage: rung ledger"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(arguments: list[str], words: str, rung: Rung) -> None:
    """Wrong usage is exit code 2, with a word on what would be right, and no traceback."""
    result = rung(*arguments)
    assert result.code == 2
    assert words in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, rung: Rung) -> None:
    """Each shell gets its script."""
    result = rung("completion", shell)
    assert result.code == 0
    assert "_RUNG_COMPLETE" in result.out


def test_version_and_schema(rung: Rung) -> None:
    """What is printed for scripts is JSON."""
    assert set(rung("version", "--json").json) == {"rung", "python"}
    assert rung("version").out.startswith("rung ")
    assert rung("version").out.startswith(f"{rung('--version').out.strip()}, Python ")
    assert rung("schema").json["$schema"].startswith("https://json-schema.org/draft/2020-12")


def test_a_reader_that_leaves() -> None:
    """`rung schema | head -1` ends without a word, and is no failure."""
    with subprocess.Popen(
        [sys.executable, "-m", "rung.cli", "schema"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
