"""Lets a step finish although its task is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

FINISHES_WITHIN_S: Final = 3.0


async def finish(work: Coroutine[Any, Any, T], *, within_s: float = FINISHES_WITHIN_S) -> T:
    """Await something; when cancelled, let it run on for a limited time before it is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=within_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
