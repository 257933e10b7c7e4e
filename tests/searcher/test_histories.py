"""Recorded searches are decided again as they were, on any machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from searcher.recording import FOLDER, SEARCHES, lines, read, record, refold

PATHS = sorted(FOLDER.glob("*.jsonl"))


def test_every_method_has_a_history() -> None:
    """No search method goes unrecorded."""
    assert [path.stem for path in PATHS] == sorted(SEARCHES)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_recorded_decisions_are_decided_again(path: Path) -> None:
    """Today's code answers every recorded fact with the recorded decisions, byte for byte."""
    assert refold(read(path)).startswith(path.read_bytes())


@pytest.mark.parametrize("name", sorted(SEARCHES))
def test_a_search_can_be_recorded_again(name: str) -> None:
    """A search under the same faults, on the same cluster, has the same history."""
    assert b"".join(lines(record(name))) == (FOLDER / f"{name}.jsonl").read_bytes()


def test_decisions_do_not_depend_on_the_process() -> None:
    """Processes that hash differently decide the same bytes and hold the same states."""
    command = [sys.executable, "-m", "searcher.recording", *map(str, PATHS)]
    path = os.pathsep.join(sys.path)
    outputs = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0] == b"".join(refold(read(path)) for path in PATHS)
