"""What was begun is finished, whatever is cancelled."""

import asyncio

import pytest

from rung.runtime.shield import finish


async def _cancelled(gate: asyncio.Event, done: list[str], within_s: float) -> asyncio.Task[None]:
    async def work() -> None:
        await gate.wait()
        done.append("done")

    task = asyncio.create_task(finish(work(), within_s=within_s))
    await asyncio.sleep(0)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def test_a_cancelled_task_finishes_first() -> None:
    """The work is done before the cancellation goes on."""
    gate, done = asyncio.Event(), list[str]()
    task = await _cancelled(gate, done, 10)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["done"]


async def test_but_not_for_ever() -> None:
    """Work that does not end is cancelled in its turn."""
    done = list[str]()
    task = await _cancelled(asyncio.Event(), done, 0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == []


async def test_results_and_errors_pass() -> None:
    """Undisturbed, it is as if the work were awaited itself."""

    async def seven() -> int:
        await asyncio.sleep(0)
        return 7

    async def fails() -> None:
        raise ValueError("no")

    assert await finish(seven()) == 7
    with pytest.raises(ValueError, match="no"):
        await finish(fails())
