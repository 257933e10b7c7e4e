"""`rung up` in the background, and `rung down`, which ends it."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from cli.conftest import Rung
from rung.cli.local.data_folder import DataFolder
from rung.events.installation import LEVEL
from rung.ledger import SqliteLedger
from rung.runtime.levels import raise_level

pytestmark = pytest.mark.processes

STARTING = """
import sys
from pathlib import Path
from rung.cli.local.data_folder import DataFolder
folder = DataFolder.open(Path(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""
"""Holds a data folder, and is not there yet."""

SLOW = """#!/bin/sh
until [ -e "$0.go" ]; do sleep 0.01; done
exec 9< "$0.data"
flock 9
echo $$ > "$0.data/lock"
echo secret > "$0.data/token"
echo "{\\"url\\": \\"http://127.0.0.1:9\\", \\"pid\\": $$}" > "$0.new"
mv "$0.new" "$0.data/server.json"
exec sleep 60
"""
"""Starts when it is told to."""


def test_its_slots_are_there_when_it_returns(tmp_path: Path) -> None:
    """A detached one returns once `rung status` shows the agent and all of its slots."""

    def rung(*arguments: str) -> Any:
        command = [sys.executable, "-m", "rung.cli", *arguments, "--data", str(tmp_path / "data")]
        result = subprocess.run(command, check=True, capture_output=True, timeout=240)
        return json.loads(result.stdout)

    rung("up", "--detach", "--port", "0", "--slots", "3", "--json")
    try:
        shown = rung("status", "--json")
    finally:
        rung("down", "--json")
    assert [len(agent["slots"]) for agent in shown["agents"]] == [3]
    assert [pool["slots"] for pool in shown["pools"]] == [3]


@pytest.mark.parametrize("before", [True, False])
def test_what_a_detached_one_said_is_for_its_owner(
    before: bool,  # noqa: FBT001 - a parameter of the test
    rung: Rung,
    tmp_path: Path,
) -> None:
    """Whoever may read the folder, the token is in it."""
    data, said = tmp_path / "data", tmp_path / "data" / "up.out"
    data.mkdir(mode=0o755)
    (data / "version").write_text("99\n")
    if before:
        said.touch(0o644)
    result = rung("up", "--detach", "--port", "0", "--data", str(data))
    assert "another Rung" in result.err
    assert "another Rung" in said.read_text()
    assert said.stat().st_mode & 0o777 == 0o600


def test_a_level_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    """Its experiments would be left alone: it says which release to start."""

    async def raised() -> None:
        with contextlib.closing(DataFolder.open(tmp_path)) as folder:
            ledger = await SqliteLedger.open(folder.ledger)
            await raise_level(ledger, LEVEL + 1)
            await ledger.close()

    asyncio.run(raised())
    command = [sys.executable, "-m", "rung.cli", "up", "--port", "0", "--data", str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 6
    assert f"logic level {LEVEL + 1} is on record" in result.stderr
    assert "use the newer release" in result.stderr


def test_a_slow_start_is_waited_for(
    rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its process lives; how long it took so far is said, not how to kill it."""
    program = tmp_path / "x"
    program.write_text(SLOW)
    program.chmod(0o755)
    monkeypatch.setattr("rung.cli.local.up._SAY_S", 0.1)
    monkeypatch.setattr(sys, "executable", str(program))
    said: list[str] = []

    def echo(message: str, **_: Any) -> None:
        said.append(message)
        if len(said) == 2:
            (tmp_path / "x.go").touch()

    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def remembered(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*given, **options))
        return started[-1]

    monkeypatch.setattr(click, "echo", echo)
    monkeypatch.setattr(subprocess, "Popen", remembered)
    try:
        assert rung("up", "--detach", "--data", str(tmp_path / "x.data")).code == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert re.match(r"Rung has been starting for \d+ s \(process \d+\)", said[0])
    assert said[-1].startswith("Rung runs on ")


def test_a_folder_that_cannot_be_written_is_refused_to_a_detached_one_too(rung: Rung) -> None:
    """The kernel's own folder is one that not even root may write."""
    result = rung("up", "--detach", "--port", "0", "--data", "/proc/rung")
    assert result.code == 6
    assert result.err.startswith("Error: the data folder /proc/rung cannot be used")
    assert "--data" in result.err


def test_one_that_ends_without_a_word_is_told_of(
    rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says goes to the disk that may be the reason."""
    program = tmp_path / "x"
    program.write_text("#!/bin/sh\nexit 6\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    result = rung("up", "--detach", "--data", str(tmp_path / "data"))
    assert result.code == 6
    assert f"is the disk of {tmp_path / 'data'} full?" in result.err


def test_down_ends_one_that_starts(rung: Rung, tmp_path: Path) -> None:
    """It holds the folder before it can be reached; that is enough to end it."""
    data = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-c", STARTING, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert rung("down", "--data", str(data), "--json").json["pid"] == process.pid
    assert process.returncode == -15
    result = rung("down", "--data", str(data))
    assert (result.code, result.out) == (0, f"Rung did not run on {data}.\n")
