"""Recorded pools are decided again as they were."""

from pathlib import Path

import pytest

from rung.events.allocation import AllocationSignaled
from scheduler.recording import (
    FOLDER,
    LEVELS,
    POOLS,
    lines,
    path_of,
    read,
    record,
    recorded,
    refold,
)

PATHS = sorted(FOLDER.rglob("*.jsonl"))
RECORDED = [(level, name) for level in LEVELS for name in sorted(POOLS)]


def test_every_level_has_its_histories() -> None:
    """What a former release decided is kept, and what this one decides is recorded."""
    assert sorted(path_of(level, name) for level, name in RECORDED) == PATHS


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_decisions_are_decided_again(path: Path) -> None:
    """Today's code answers every recorded fact with the recorded decisions, byte for byte."""
    assert refold(read(path)) == recorded(path)


@pytest.mark.parametrize(("level", "name"), RECORDED)
def test_a_pool_can_be_recorded_again(level: int, name: str) -> None:
    """The same draws, on the same agents, have the same history; trials yield in it."""
    history = record(level, name)

    assert b"".join(lines(history)) == recorded(path_of(level, name))
    assert any(isinstance(each, AllocationSignaled) for _, made in history for each in made)
