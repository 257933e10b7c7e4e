"""The agent beside `rung up` is kept running."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rung.agent.config import EXIT_REFUSED
from rung.cli import one_machine
from rung.cli.data_folder import DataFolder, DataFolderError
from rung.cli.log_limits import LogLimits


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
        async with one_machine._agent(folder, slots=1, limits=LogLimits(), ended=asyncio.Event()):
            process = await started
            assert process.returncode is None
    assert process.returncode is not None


async def test_an_agent_that_is_refused_for_good_ends_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the agent's own last words, and where there are more."""
    execute = asyncio.create_subprocess_exec
    says = f"echo '{{}}' >&2; echo 'Error: the spool is damaged' >&2; exit {EXIT_REFUSED}"

    async def refused(*_: object, **how: Any) -> asyncio.subprocess.Process:
        return await execute("sh", "-c", says, **how)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    ended = asyncio.Event()
    refusal = pytest.raises(
        DataFolderError, match=r"^the spool is damaged; .*/agent\.log has more"
    )
    with contextlib.closing(DataFolder.open(tmp_path / "data")) as folder, refusal:
        async with one_machine._agent(folder, slots=1, limits=LogLimits(), ended=ended):
            await ended.wait()
