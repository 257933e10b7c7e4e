"""Two releases side by side under load: one logic decides each fact, and audits stay clean."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rung.ledger import Ledger, MemoryLedger, SqliteLedger
from rung.runtime import audit
from rung.runtime.levels import raise_level
from support.runtime.releases import (
    Load,
    NextSearcher,
    OldSearcher,
    Replica,
    assert_clean,
    assert_of_one_level,
    letters,
    within,
)

ALL = range(4)


@pytest.fixture(params=["memory", "sqlite"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    """Return an empty ledger of four partitions."""
    if request.param == "memory":
        made: Ledger = MemoryLedger(partitions=len(ALL))
    else:
        made = await SqliteLedger.open(tmp_path, partitions=len(ALL))
    yield made
    await made.close()


async def test_a_rolling_upgrade_under_load(ledger: Ledger) -> None:
    """Before, while partitions move between both and are held by both, and after the raise."""
    load = Load(ledger)
    loading = asyncio.create_task(load.run())

    async def go_on(runs: int = 12) -> None:
        await within(load.trials.reached(len(load.trials.answered) + runs))

    first, second = Replica(ledger, 1), Replica(ledger, 1)
    await first.hold(0, 1)
    await second.hold(2, 3)
    await go_on()
    await assert_clean(ledger, 1)

    third = Replica(ledger, 2)
    await first.end()
    await third.hold(0, 1)
    await go_on()
    await third.hold(*ALL)  # both have two of them for a while
    await go_on()
    await second.hold(0, 1)
    await go_on()
    await third.hold(2, 3)
    await go_on()
    for level in (1, 2):
        await assert_clean(ledger, level)

    fourth = Replica(ledger, 2)
    await second.end()
    await fourth.hold(0, 1)
    assert await raise_level(ledger, 2) == 1
    await go_on(24)
    await assert_clean(ledger, 2)

    load.stop()
    await within(loading)
    for replica in (third, fourth):
        await replica.end()
    await assert_clean(ledger, 2, complete=True)
    await assert_of_one_level(ledger, load.levels)
    assert await letters(ledger) == []


async def test_a_replica_of_the_old_release_that_comes_back(ledger: Ledger) -> None:
    """It leaves alone what it does not know and goes on with the rest, which waits for the new."""
    load = Load(ledger)
    answering = asyncio.create_task(load.trials.run())
    new = Replica(ledger, 2)
    await new.hold(*ALL)
    await load.submit("before", 2)
    await within(load.trials.reached(2))
    await new.end()

    old = Replica(ledger, 1)
    await old.hold(*ALL)
    known = [f"old{number}" for number in range(8)]
    unknown = {f"new{number}" for number in range(8)}
    for name in unknown:
        await load.submit(name, 2)
    for name in known:
        await load.submit(name, 1)
    await within(load.trials.ended(*known))
    await old.end()
    assert load.trials.open >= unknown
    verdict = await audit(ledger, OldSearcher())
    assert verdict.differences == []
    assert len(verdict.unreadable) == 9
    assert (
        "its logic level 2 is newer than those that this release of searcher knows (up to 1)"
        in (verdict.unreadable[0])
    )

    again = Replica(ledger, 2)
    await again.hold(*ALL)
    await within(load.trials.ended())
    await again.end()
    answering.cancel()
    verdict = await audit(ledger, NextSearcher())
    assert (verdict.same, verdict.pending) == (True, 0)
    assert await letters(ledger) == []
