"""Recorded searches are decided again as they were, on any machine."""

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from searcher.recording import (
    ALL,
    FOLDER,
    LEVELS,
    lines,
    path_of,
    read,
    record,
    recorded,
    refold,
)

PATHS = sorted(FOLDER.rglob("*.jsonl"))
RECORDED = list(product(LEVELS, sorted(ALL)))


def test_every_method_has_a_history_at_every_level() -> None:
    """No search method goes unrecorded, and none as it was decided by a former release."""
    assert sorted(path_of(level, name) for level, name in RECORDED) == PATHS


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_decisions_are_decided_again(path: Path) -> None:
    """Today's code answers every recorded fact with the recorded decisions, byte for byte."""
    assert refold(read(path)).startswith(recorded(path))


@pytest.mark.parametrize(("level", "name"), RECORDED)
def test_a_search_can_be_recorded_again(level: int, name: str) -> None:
    """A search under the same faults, on the same cluster, has the same history."""
    assert b"".join(lines(record(level, name))) == recorded(path_of(level, name))


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
