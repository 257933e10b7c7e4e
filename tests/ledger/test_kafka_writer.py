"""The bound on what waits to be sent."""

import asyncio

import pytest

from rung.ledger.kafka.writer import Budget


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_in_line() -> None:
    """Who finds too little waits; the small do not pass the large."""
    budget = Budget(10)
    await budget.take(6)
    large = asyncio.create_task(budget.take(8))
    small = asyncio.create_task(budget.take(1))
    await settle()
    assert not large.done()
    assert not small.done()
    budget.give(6)
    await settle()
    assert large.done()
    assert small.done()
    assert budget.taken == 9


async def test_larger_than_all() -> None:
    """One that is larger than all there is waits for all, and gives back what it took."""
    budget = Budget(10)
    await budget.take(1)
    huge = asyncio.create_task(budget.take(100))
    await settle()
    assert not huge.done()
    budget.give(1)
    await huge
    assert budget.taken == 10
    budget.give(100)
    assert budget.taken == 0


@pytest.mark.parametrize("given_before", [False, True])
async def test_canceled_in_line(given_before: bool) -> None:  # noqa: FBT001 - a parameter
    """One that gives up leaves the line and takes nothing, whenever that is."""
    budget = Budget(10)
    await budget.take(10)
    first = asyncio.create_task(budget.take(5))
    second = asyncio.create_task(budget.take(5))
    await settle()
    if given_before:
        budget.give(10)
        first.cancel()
    else:
        first.cancel()
        await settle()
        budget.give(10)
    await settle()
    assert first.cancelled()
    assert second.done()
    assert budget.taken == 5
