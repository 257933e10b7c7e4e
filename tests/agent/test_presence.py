"""What an agent says of itself while the ledger does not always listen."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog

from rung.agent.config import Settings
from rung.agent.presence import Presence
from rung.agent.spool import Spool
from rung.events import LedgerRefused
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
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    """Give an open spool."""
    made = Spool(tmp_path / "spool.db")
    made.open("a1", "host")
    yield made
    await made.close()


async def _joined(ledger: Doorkeeper, spool: Spool, folder: Path) -> Presence:
    settings = Settings(folder=folder, objects_url=folder.as_uri(), beat_s=0.001)
    presence = Presence(settings, ledger, spool, [])
    await presence.join()
    return presence


async def test_a_refused_login_does_not_end_the_beats(tmp_path: Path, spool: Spool) -> None:
    """Once the ledger took a beat, a refusal is an error in the log, and beats go on."""
    ledger = Doorkeeper("come in", "no", "no", "come in")
    presence = await _joined(ledger, spool, tmp_path)
    with structlog.testing.capture_logs() as said:
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(presence.beat([]))
            await ledger.asked.wait()
            beating.cancel()
    assert [(line["log_level"], line["event"]) for line in said] == [
        ("error", "no beat: the ledger refuses this agent")
    ] * 2


async def test_a_login_that_is_refused_at_the_first_beat(tmp_path: Path, spool: Spool) -> None:
    """An agent that never could beat says so to who started it."""
    presence = await _joined(Doorkeeper("no"), spool, tmp_path)
    with pytest.raises(LedgerRefused):
        await presence.beat([])
