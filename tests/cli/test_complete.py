"""Completion of names in the shell."""

import os
import subprocess
import sys

import pytest

from client import recorded
from client.scripted import Scripted, json_answer


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
    server.on("/experiments", json_answer({"items": [recorded.summary()], "next_cursor": None}))
    assert completed("show", "k3") == ["k3v9x2ab"]
    assert completed("show", "z") == []


def test_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Where nobody answers, nothing is offered and nothing is said."""
    monkeypatch.setenv("RUNG_DATA", f"{tmp_path}/none")
    assert completed("show", "k") == []
