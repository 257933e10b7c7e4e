"""Finishes what was begun, even when it is cancelled in the middle."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

FINISHES_WITHIN_S: Final = 3.0


async def finish(work: Coroutine[Any, Any, T], *, within_s: float = FINISHES_WITHIN_S) -> T:
    """Await something that is not to be cut short.

    Cancelled, it still waits for the end of it, though not for ever, and is cancelled then.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=within_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
