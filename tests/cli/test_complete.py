"""Completion of names in the shell."""

import os
import subprocess
import sys

import pytest

from support import recorded_answers
from support.scripted_server import Scripted, json_answer


def completed(*words: str) -> list[str]:
    """Return what bash is offered for the last word."""
    result = subprocess.run(
        [sys.executable, "-c", "from rung.cli.__main__ import main; main()"],
        env={
            **os.environ,
            "_RUNG_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("rung", *words)),
            "COMP_CWORD": str(len(words)),
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def test_commands() -> None:
    """A command's beginning is completed."""
    assert completed("su") == ["submit"]
    assert completed("ledger", "ex") == ["export"]


def test_experiments(server: Scripted) -> None:
    """An experiment's beginning is completed from what the server knows."""
    server.on(
        "/experiments", json_answer({"items": [recorded_answers.summary()], "next_cursor": None})
    )
    assert completed("show", "k3") == ["k3v9x2ab"]
    assert completed("show", "z") == []


def test_trials(server: Scripted) -> None:
    """After the dot of an experiment's id or name come the numbers of its trials."""
    server.on("/experiments/digits", json_answer(recorded_answers.experiment()))
    assert completed("trial", "kill", "digits.") == ["digits.0", "digits.1"]
    assert completed("show", "digits.1") == ["digits.1"]
    assert completed("logs", "digits.7") == []


def test_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Where nobody answers, nothing is offered and nothing is said."""
    monkeypatch.setenv("RUNG_DATA", f"{tmp_path}/none")
    assert completed("show", "k") == []
