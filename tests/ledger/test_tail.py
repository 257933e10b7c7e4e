"""Several topics followed as one."""

import asyncio
from contextlib import aclosing

import pytest

from rung.events import LedgerError, LedgerUnavailable, topic
from rung.ledger import MemoryLedger
from rung.ledger.tail import tail
from support.ledger.conformance import draft

BOTH = (topic.EXPERIMENTS, topic.SEARCHES)


async def test_from_the_beginning() -> None:
    """Old and new records of all partitions of all topics named, and of no other."""
    ledger = MemoryLedger()
    await ledger.append([draft(f"k{n}", name=name) for n in range(20) for name in BOTH])
    await ledger.append([draft("k", name=topic.LOGS)])
    seen = []
    async with aclosing(tail(ledger, BOTH, start="beginning")) as records:
        async for record in records:
            seen.append((record.topic, record.key))
            if len(seen) == 40:
                await ledger.append([draft("new", name=topic.LOGS), draft("new")])
            if len(seen) == 41:
                break
    assert seen[40] == (topic.EXPERIMENTS, "new")
    assert sorted(seen[:40]) == sorted((name, f"k{n}") for n in range(20) for name in BOTH)


async def test_from_the_end_for_one_key() -> None:
    """Only records appended later, and only of the key."""
    ledger = MemoryLedger()
    await ledger.append([draft("k", b"old")])
    async with aclosing(tail(ledger, BOTH, key="k")) as records:
        first = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0)
        await ledger.append([draft("other"), draft("k", b"new")])
        assert (await first).value == b"new"


async def test_failures_come_through() -> None:
    """An unknown topic and a closed ledger raise their error."""
    ledger = MemoryLedger()
    with pytest.raises(LedgerError, match="weather"):
        await anext(tail(ledger, ["weather"]))
    following = asyncio.ensure_future(anext(tail(ledger, BOTH)))
    await asyncio.sleep(0)
    await ledger.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        await following
