"""The demo, whatever happens to the commands that it runs."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rung.cli.local import demo

ACTIVE, ENDED = {"ended_at": None}, {"ended_at": "2026-01-31T12:00:00Z"}


class Commands:
    """Takes the place of the commands, and notes them."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.codes: dict[str, int] = {}
        self.answers: dict[str, list[Any]] = {"list": [{"items": [{"id": "k3v9x2ab"}]}]}

    def run(self, name: str, *_: str, **__: bool) -> int:
        """Note a command; return its code."""
        self.ran.append(name)
        if name == "audit" and "terminate" in self.codes:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.codes.get(name, 0)

    def ask(self, name: str, *_: str) -> Any:
        """Return a command's next answer; it fails where there is none."""
        if not self.answers.get(name):
            raise subprocess.CalledProcessError(3, demo._command(name))
        return self.answers[name].pop(0)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """Return what stands for the commands of a demo, whose traces are removed."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("RUNG_DATA", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    item = Commands()
    monkeypatch.setattr(demo, "_rung", item.run)
    monkeypatch.setattr(demo, "_json", item.ask)
    monkeypatch.setattr(demo, "_report", lambda *_: item.ran.append("report"))
    yield item
    signal.signal(signal.SIGTERM, before)


def test_a_search_is_told_of_once_it_ended(commands: Commands) -> None:
    """Where who watches it is killed, it is watched again; the code is the audit's."""
    commands.codes = {"submit": -9, "audit": 1}
    commands.answers["show"] = [ACTIVE, ACTIVE, ENDED]
    with pytest.raises(SystemExit) as left:
        demo.main()
    assert commands.ran == ["up", "submit", "wait", "wait", "report", "audit", "down"]
    assert left.value.code == 1


def test_a_submission_that_is_refused_ends_it(commands: Commands) -> None:
    """With the code of the refusal."""
    commands.codes = {"submit": 2}
    commands.answers["list"] = [{"items": []}]
    with pytest.raises(SystemExit) as left:
        demo.main()
    assert commands.ran == ["up", "submit", "down"]
    assert left.value.code == 2


def test_a_server_that_somebody_stopped_ends_it(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a sentence that names the command, below what that said itself."""
    with pytest.raises(SystemExit) as left:
        demo.main()
    assert left.value.code == 3
    assert "The demo cannot go on: `rung show` failed." in capsys.readouterr().out


def test_sigterm_ends_the_server_too(commands: Commands) -> None:
    """Nothing trains on behind it."""
    commands.codes = {"terminate": 1}
    commands.answers["show"] = [ENDED]
    with pytest.raises(SystemExit) as left:
        demo.main()
    assert commands.ran[-1] == "down"
    assert left.value.code == 128 + signal.SIGTERM
