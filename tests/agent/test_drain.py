"""Bringing the spool's facts to a ledger that does not take all of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from rung.agent.drain import Drain
from rung.agent.spool import Spool
from rung.events import EventTooLarge, decode, topic
from rung.events.trial import TrialStarted, TrialValidated
from rung.ledger import Draft, MemoryLedger

BYTES_MAX = 10_000


class NarrowLedger(MemoryLedger):
    """A ledger whose records hold little, as topics do that somebody else made."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, or refuse all for the sake of one."""
        if any(len(draft.value) > BYTES_MAX for draft in drafts):
            raise EventTooLarge("an event is larger than the topic takes")
        return await super().append(drafts)


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    """Give an open spool."""
    made = Spool(tmp_path / "spool.db")
    made.open("a1", "host")
    yield made
    await made.close()


async def test_a_fact_too_large_for_the_ledger_is_given_up(spool: Spool) -> None:
    """It is in the log as lost; all before and behind it arrives, in order, and nothing ends."""
    about = {"experiment_id": "e", "trial_id": "e.0"}
    large = TrialValidated(
        **about, run=2, steps_completed=1, metrics={f"m{n}": 1.0 for n in range(2_000)}
    )
    ledger = NarrowLedger(partitions=1)
    await spool.durable(
        spool.put(
            TrialStarted(**about, run=1, agent_id="a1"),
            large,
            *(TrialStarted(**about, run=run, agent_id="a1") for run in (2, 3)),
        )
    )
    drain = Drain(spool, ledger)
    with structlog.testing.capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(drain.run())
            await drain.empty()
            draining.cancel()
    records = await ledger.read(topic.EXPERIMENTS, 0, 0, 10)
    assert [decode(record.value).sequence for record in records] == [1, 3, 4]
    (line,) = said
    assert (line["log_level"], line["topic"], line["key"]) == ("error", topic.EXPERIMENTS, "e")
    assert "lost" in line["event"]
