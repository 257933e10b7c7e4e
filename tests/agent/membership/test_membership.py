"""What an agent says of itself while the ledger does not always listen."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from rung.agent.membership.membership import Membership
from rung.agent.outbox.outbox import Outbox
from rung.agent.settings import Settings
from rung.events import LedgerRefused, decode
from rung.events.allocation import AgentJoined
from rung.ledger import Draft, MemoryLedger


class Doorkeeper(MemoryLedger):
    """A ledger that says to each append whether it lets in who asks."""

    def __init__(self, *answers: str) -> None:
        super().__init__(partitions=1)
        self._answers = list(answers)
        self.asked = asyncio.Event()
        """Whether all answers were given."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, or refuse the login."""
        answer = self._answers.pop(0) if self._answers else "come in"
        if not self._answers:
            self.asked.set()
        if answer != "come in":
            raise LedgerRefused("the broker refuses the login")
        return await super().append(drafts)


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Outbox]:
    """Give an open outbox."""
    made = Outbox(tmp_path / "spool.db")
    made.open("a1", "host")
    yield made
    await made.close()


async def _joined(ledger: Doorkeeper, outbox: Outbox, folder: Path) -> Membership:
    settings = Settings(folder=folder, objects_url=folder.as_uri(), heartbeat_s=0.001)
    membership = Membership(settings, ledger, outbox, [])
    await membership.join()
    return membership


async def test_a_refused_login_does_not_end_the_beats(tmp_path: Path, outbox: Outbox) -> None:
    """Once the ledger took a beat, a refusal is an error in the log, and beats go on."""
    ledger = Doorkeeper("come in", "no", "no", "come in")
    membership = await _joined(ledger, outbox, tmp_path)
    with structlog.testing.capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(membership.send_heartbeats([]))
            await ledger.asked.wait()
            beating.cancel()
    assert [(line["log_level"], line["event"]) for line in said] == [
        ("error", "no beat: the ledger refuses this agent")
    ] * 2


async def test_a_login_that_is_refused_at_the_first_beat(tmp_path: Path, outbox: Outbox) -> None:
    """An agent that never could beat says so to who started it."""
    membership = await _joined(Doorkeeper("no"), outbox, tmp_path)
    with pytest.raises(LedgerRefused):
        await membership.send_heartbeats([])


async def test_a_join_says_when_the_agent_was_last_there(tmp_path: Path, outbox: Outbox) -> None:
    """By its heartbeats, whichever life of it sent them; the first one of a folder cannot say."""
    ledger = Doorkeeper("come in")
    membership = await _joined(ledger, outbox, tmp_path)
    begun_ms = time.time_ns() // 1_000_000
    beating = asyncio.create_task(membership.send_heartbeats([]))
    await ledger.asked.wait()
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await membership.join()
    await outbox.written()
    events = [decode(entry.draft.value).data for entry in await outbox.read(0, 100)]
    first, second = [data for data in events if isinstance(data, AgentJoined)]
    assert first.seen_ms is None
    assert second.seen_ms is not None
    assert begun_ms - 1_000 <= second.seen_ms <= time.time_ns() // 1_000_000
