"""What followers of one partition in one process have to do with each other."""

import asyncio

import pytest

from rung.ledger.kafka.stream import Cursor, Stream

pytestmark = pytest.mark.ledger


async def test_who_waits_is_woken_when_another_goes_ahead() -> None:
    """What lies between is fetched for nobody any more: the one behind must read it itself."""
    stream = Stream("experiments", 0, 5)
    behind, ahead = Cursor(5), Cursor(9)
    stream.cursors |= {behind, ahead}
    waiting = asyncio.create_task(stream.wait(behind))
    await asyncio.sleep(0)
    other = asyncio.create_task(stream.wait(ahead))
    await asyncio.wait_for(waiting, 5)
    assert not other.done()
    other.cancel()
