"""Recorded pools are decided again as they were."""

from pathlib import Path

import pytest

from rung.events.allocation import AllocationSignaled
from scheduler.recording import FOLDER, POOLS, lines, read, record, recorded, refold

PATHS = sorted(FOLDER.glob("*.jsonl"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_recorded_decisions_are_decided_again(path: Path) -> None:
    """Today's code answers every recorded fact with the recorded decisions, byte for byte.

    These were recorded before pools had policies, and requests an owner and a weight.
    """
    assert refold(read(path)) == recorded(path)


@pytest.mark.parametrize("name", sorted(POOLS))
def test_a_pool_can_be_recorded_again(name: str) -> None:
    """The same draws, on the same agents, have the same history; trials yield in it."""
    history = record(name)

    assert b"".join(lines(history)) == recorded(FOLDER / f"{name}.jsonl")
    assert any(isinstance(each, AllocationSignaled) for _, made in history for each in made)
