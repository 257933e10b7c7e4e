"""The agent beside `rung up` is kept running."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rung.agent.settings import EXIT_REFUSED
from rung.cli.local import one_machine
from rung.cli.local.data_folder import DataFolder, DataFolderError
from rung.cli.local.up import UpOptions
from rung.ledger import MemoryLedger


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
        async with _agent(folder):
            process = await started
            assert process.returncode is None
    assert process.returncode is not None


async def test_an_agent_that_is_refused_for_good_ends_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the agent's own last words, and where there are more."""
    execute = asyncio.create_subprocess_exec
    says = f"echo '{{}}' >&2; echo 'Error: the outbox is damaged' >&2; exit {EXIT_REFUSED}"

    async def refused(*_: object, **how: Any) -> asyncio.subprocess.Process:
        return await execute("sh", "-c", says, **how)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    ended = asyncio.Event()
    refusal = pytest.raises(
        DataFolderError, match=r"^the outbox is damaged; .*/agent\.log has more"
    )
    with contextlib.closing(DataFolder.open(tmp_path / "data")) as folder, refusal:
        async with _agent(folder, ended):
            await ended.wait()


async def test_an_agent_that_never_joins_ends_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some failures, with its last words; one that had joined is started for ever."""
    execute = asyncio.create_subprocess_exec
    starts: asyncio.Queue[None] = asyncio.Queue()

    async def failing(*_: object, **how: Any) -> asyncio.subprocess.Process:
        starts.put_nowait(None)
        return await execute("sh", "-c", "echo 'Error: no disk' >&2; exit 1", **how)

    monkeypatch.setattr(one_machine, "_AGENT_RETRY_S", 0.01)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", failing)
    ended, joined = asyncio.Event(), asyncio.Event()
    joined.set()
    with contextlib.closing(DataFolder.open(tmp_path / "data")) as folder:
        async with _agent(folder, ended, joined):
            for _ in range(2 * one_machine._DEATHS_MAX):
                await starts.get()
            assert not ended.is_set()
        ended.clear()
        with pytest.raises(DataFolderError, match=r"^no disk; .*/agent\.log has more"):
            async with _agent(folder, ended):
                await ended.wait()


def _agent(
    folder: DataFolder, ended: asyncio.Event | None = None, joined: asyncio.Event | None = None
) -> contextlib.AbstractAsyncContextManager[None]:
    return one_machine._agent(
        MemoryLedger(),
        folder,
        UpOptions(port=0, slots=1),
        ended=ended or asyncio.Event(),
        joined=joined or asyncio.Event(),
        umask=0o022,
    )
