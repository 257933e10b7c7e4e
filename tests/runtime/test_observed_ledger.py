"""What passes through an observed ledger is what passes through the one inside."""

import asyncio
from collections.abc import Sequence

import pytest

from rung.events import LedgerUnavailable
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime.health.checks import ProcessHealth
from rung.runtime.metrics import catalog
from rung.runtime.metrics.observed_ledger import ObservedLedger
from runtime.tally import pause


def _draft(number: int) -> Draft:
    event = pause(number)
    return Draft.of(event)


def _number(text: str) -> float:
    """Return a sample of what the process tells."""
    for line in catalog.METER.expose().decode().splitlines():
        if line.startswith(text + " "):
            return float(line.split()[1])
    return 0.0


async def test_everything_is_passed_on() -> None:
    """Each method does what the ledger inside does."""
    inside = MemoryLedger(partitions=1)
    ledger = ObservedLedger(inside, ProcessHealth())

    assert (ledger.id, ledger.partitions("experiments")) == (inside.id, 1)
    assert await ledger.append([_draft(1), _draft(2)]) == [0, 1]
    assert await ledger.read("experiments", 0, 1, 9) == await inside.read("experiments", 0, 1, 9)
    assert (await ledger.start("experiments", 0), await ledger.end("experiments", 0)) == (0, 2)
    await ledger.commit("me", "experiments", 0, 1)
    assert await ledger.position("me", "experiments", 0) == 1
    await ledger.save_snapshot("mine", 0, b"x")
    assert await ledger.snapshot("mine", 0) == b"x"
    await ledger.close()
    with pytest.raises(LedgerUnavailable):
        await inside.end("experiments", 0)


async def test_a_follower_is_where_it_has_finished() -> None:
    """The position grows when a batch is done, not when it is given."""
    health = ProcessHealth()
    ledger = ObservedLedger(MemoryLedger(partitions=1), health)
    await ledger.append([_draft(1), _draft(2)])
    seen: list[Sequence[Record]] = []
    with health.loop("reader/0") as loop:
        async for records in ledger.follow("experiments", 0, 0):
            [followed] = loop.partitions
            assert (followed.position, followed.working) == (0, True)
            seen.append(records)
            waiting = asyncio.ensure_future(anext(aiter(ledger.follow("experiments", 0, 2))))
            await asyncio.sleep(0)
            assert [s.position for s in loop.partitions] == [0, 2]
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            break

    assert [len(records) for records in seen] == [2]


async def test_appends_are_timed_and_errors_counted() -> None:
    """Per topic; by the error's name."""
    inside = MemoryLedger(partitions=1)
    ledger = ObservedLedger(inside, ProcessHealth())
    appends = 'rung_append_seconds_count{topic="experiments"}'
    errors = 'rung_ledger_errors_total{kind="LedgerUnavailable"}'
    before = _number(appends), _number(errors)
    await ledger.append([_draft(1)])
    await inside.close()
    with pytest.raises(LedgerUnavailable):
        await ledger.append([_draft(2)])
    with pytest.raises(LedgerUnavailable):
        await anext(ledger.follow("experiments", 0, 0))

    assert (_number(appends), _number(errors)) == (before[0] + 1, before[1] + 2)
