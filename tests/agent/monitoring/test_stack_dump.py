"""The processes of a run, and what each of them does."""

import asyncio
import contextlib
import os

import pytest

from rung.agent.monitoring.process_tree import tree
from rung.agent.monitoring.stack_dump import look_at
from support.processes import eventually

pytestmark = pytest.mark.processes


async def test_the_tree_and_what_a_process_does() -> None:
    """Children are found below their parents; each has its name and state."""
    shell = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 60 & echo here; wait", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert shell.stdout is not None
        await shell.stdout.readline()
        main, child = tree([shell.pid])

        def sleeps() -> bool:
            found = look_at(child)
            return found is not None and found[1:3] == ("sleep 60", "sleeping")

        await eventually(sleeps)
    finally:
        for pid in reversed(tree([shell.pid])):
            with contextlib.suppress(ProcessLookupError):  # the shell ends with its child
                os.kill(pid, 9)
        await shell.communicate()
    assert main == shell.pid
    assert look_at(2**22 + 1) is None
