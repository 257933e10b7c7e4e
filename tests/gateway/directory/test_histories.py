"""Recorded directories are decided again as they were, in any process."""

from pathlib import Path

import pytest

from gateway.directory.recording import COMPANIES, FOLDER, LEVELS, path_of, read, recorded, refold
from support.runtime.hashing import digest_of

PATHS = sorted(FOLDER.rglob("*.jsonl"))


def test_every_level_has_its_histories() -> None:
    """What a former release decided is kept, and what this one decides is recorded."""
    assert sorted(path_of(level, name) for level in LEVELS for name in COMPANIES) == PATHS


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_decisions_are_decided_again(path: Path) -> None:
    """Today's code answers every recorded request with the recorded decision, byte for byte."""
    assert refold(read(path)) == recorded(path)


def test_decisions_do_not_depend_on_hashing() -> None:
    """Two processes that hash differently write the same history, byte for byte."""
    first = digest_of("gateway.directory.workload", "1")

    assert len(first) == 64
    assert first == digest_of("gateway.directory.workload", "2718281828")
