"""A run of two slots as an agent starts it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rung.events.checkpoint import CheckpointStored
from support.agent_rig import Rig
from support.framework_trials import QUIET, needs

TESTS = Path(__file__).parents[1]
SCRIPT = f"""
import os, sys
os.environ.update({QUIET!r})
sys.path.insert(0, {str(TESTS)!r})
from support.frameworks.tensorflow_trial import train
print("weights", train({{"source": "shuffled", "noise": 0.0}})["weights"])
"""

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """Give an agent with four slots."""
    item = Rig(tmp_path)
    item.start()
    try:
        yield item
    finally:
        await item.close()


@pytest.mark.parametrize("launcher", [{}, {"distributed": {"launcher": "tensorflow"}}])
async def test_the_ranks_are_brought_together(rig: Rig, launcher: dict[str, Any]) -> None:
    """They find each other by what the agent says, train one model, and the chief reports."""
    ended = await rig.end_of(
        await rig.grant(
            code=rig.code(train=SCRIPT),
            slots=[0, 1],
            searcher={"metric": "loss"},
            **launcher,
            scheduling_unit=1,
        )
    )
    assert ended.exit.outcome == "finished", ended.printed("stderr")
    said = [text for text in ended.printed() if text.startswith("weights")]
    assert len(said) == 2
    assert len(set(said)) == 1
    steps = [step for kind, step, _ in ended.rows if kind == "training"]
    assert steps == list(range(1, 11))
    # A checkpoint follows each validation: after each epoch of three batches, and at the end.
    assert [each.steps_completed for each in ended.of(CheckpointStored)] == [3, 6, 9, 10]
