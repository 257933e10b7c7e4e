"""The agent beside `rung up` is kept running."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rung.cli import one_machine
from rung.cli.data_folder import DataFolder


async def test_an_agent_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has no memory for a moment does not leave `rung up` without an agent."""
    execute, refusals = asyncio.create_subprocess_exec, 2
    started: asyncio.Future[asyncio.subprocess.Process] = asyncio.Future()

    async def short_of_memory(*_: object, **how: Any) -> asyncio.subprocess.Process:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        started.set_result(await execute("sleep", "600", **how))
        return started.result()

    monkeypatch.setattr(one_machine, "_AGENT_RETRY_S", 0.01)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", short_of_memory)
    with contextlib.closing(DataFolder.open(tmp_path / "data")) as folder:
        async with one_machine._agent(folder, slots=1):
            process = await started
            assert process.returncode is None
    assert process.returncode is not None
