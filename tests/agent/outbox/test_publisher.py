"""Bringing the outbox's facts to a ledger that does not take all of them, or none for a while."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.publisher import Publisher
from rung.events import EventTooLarge, LedgerRefused, decode, topic
from rung.events.trial import MetricValue, TrialStarted, TrialValidated
from rung.ledger import Draft, MemoryLedger

BYTES_MAX = 10_000


class NarrowLedger(MemoryLedger):
    """A ledger whose records hold little, as topics do that somebody else made."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, or refuse all for the sake of one."""
        if any(len(draft.value) > BYTES_MAX for draft in drafts):
            raise EventTooLarge("an event is larger than the topic takes")
        return await super().append(drafts)


class LockedLedger(MemoryLedger):
    """A ledger that lets nobody in when told so."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.locked = False
        self.refused = asyncio.Event()

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, or refuse the login."""
        if self.locked:
            self.refused.set()
            raise LedgerRefused("the broker refuses the login")
        return await super().append(drafts)


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Outbox]:
    """Give an open outbox."""
    made = Outbox(tmp_path / "spool.db")
    made.open("a1", "host")
    yield made
    await made.close()


def _started(run: int) -> TrialStarted:
    return TrialStarted(experiment_id="e", trial_id="e.0", run=run, agent_id="a1")


async def test_a_fact_too_large_for_the_ledger_is_given_up(outbox: Outbox) -> None:
    """It is in the log as lost; all before and behind it arrives, in order, and nothing ends."""
    metrics: dict[str, MetricValue] = {f"m{number}": 1.0 for number in range(2_000)}
    large = TrialValidated(
        experiment_id="e", trial_id="e.0", run=1, steps_completed=1, metrics=metrics
    )
    ledger = NarrowLedger(partitions=1)
    await outbox.durable(outbox.put(_started(1), large, _started(2), _started(3)))
    publisher = Publisher(outbox, ledger)
    with structlog.testing.capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(publisher.run())
            await publisher.empty()
            draining.cancel()
    records = await ledger.read(topic.EXPERIMENTS, 0, 0, 10)
    assert [decode(record.value).sequence for record in records] == [1, 3, 4]
    (line,) = said
    assert (line["log_level"], line["topic"], line["key"]) == ("error", topic.EXPERIMENTS, "e")
    assert "lost" in line["event"]


async def test_a_login_that_is_refused_later_is_waited_out(outbox: Outbox) -> None:
    """Reports stay in the outbox, the log says why as an error, and all arrive once it lets in."""
    ledger = LockedLedger()
    publisher = Publisher(outbox, ledger)
    with structlog.testing.capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(publisher.run())
            outbox.put(_started(1))
            await publisher.empty()
            ledger.locked = True
            outbox.put(_started(2))
            await ledger.refused.wait()
            assert publisher.refused == "the broker refuses the login"
            ledger.locked = False
            await publisher.empty()
            draining.cancel()
    assert publisher.refused is None
    assert len(await ledger.read(topic.EXPERIMENTS, 0, 0, 10)) == 2
    assert [line["log_level"] for line in said] == ["error", "info"]
    assert "refuses this agent" in said[0]["event"]


async def test_a_login_that_is_refused_at_the_start_is_an_error(outbox: Outbox) -> None:
    """Nothing runs yet, so whoever started the agent hears of it at once."""
    ledger = LockedLedger()
    ledger.locked = True
    outbox.put(_started(1))
    with pytest.raises(LedgerRefused):
        await Publisher(outbox, ledger).run()
    assert outbox.backlog == 1
