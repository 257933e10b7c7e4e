"""The fork server with the frameworks is there while runs need it."""

import contextlib
from pathlib import Path

import psutil
import pytest

from support.agent_rig import Rig
from support.processes import eventually

pytestmark = pytest.mark.processes

SAYS = """
import sys
print("torch", "torch" in sys.modules, flush=True)
import torch
"""
PLAIN = "print('plain', flush=True)"


def _servers(folder: Path) -> int:
    """Return how many fork servers an agent in this process has."""
    found = 0
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += child.cwd() == str(folder / "agent")
    return found


async def test_unused_frameworks_leave_the_memory(rig: Rig, tmp_path: Path) -> None:
    """They end while no run has them; a run that needs them finds them imported all the same."""
    rig.start(cold=False, frameworks_idle_s=0.0)
    await eventually(lambda: _servers(tmp_path) == 2)
    await eventually(lambda: _servers(tmp_path) == 1)
    plain = await rig.end_of(await rig.grant(code=rig.code(train=PLAIN)))
    assert (plain.printed(), _servers(tmp_path)) == (["plain"], 1)
    for _ in range(2):
        ended = await rig.end_of(await rig.grant(code=rig.code(train=SAYS)))
        assert (ended.exit.outcome, ended.printed()) == ("finished", ["torch True"])
        await eventually(lambda: _servers(tmp_path) == 1)
