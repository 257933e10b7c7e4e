"""Fixtures of the agent's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.agent_rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """Give a rig whose agent is started by the test, and ended after it."""
    made = Rig(tmp_path)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def running(rig: Rig) -> Rig:
    """Give a rig with a running agent, whose fork server has no frameworks."""
    rig.start()
    return rig
