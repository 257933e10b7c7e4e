"""Appending through another process: as if by oneself, whatever becomes of either."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ledger.conformance import LedgerConformance, draft, read_all
from rung.events import EventTooLarge, LedgerError, LedgerUnavailable, partition_of, topic
from rung.ledger import Draft, Ledger, MemoryLedger, SqliteLedger
from rung.ledger.factory import open_through
from rung.ledger.sqlite.through import append_for

pytestmark = pytest.mark.ledger

AT = partition_of("k", 4)


class Pair:
    """A ledger, and the same one as a process has it that appends through this one."""

    def __init__(self, parent: SqliteLedger, folder: Path) -> None:
        self.parent = parent
        self.gone = asyncio.Event()
        self._folder = folder

    async def open(self, parent: Ledger | None = None) -> Ledger:
        """Open it for a process; it ends with `end`."""
        ours, theirs = socket.socketpair()
        self.appending = asyncio.create_task(append_for(parent or self.parent, ours))
        return await open_through(str(self._folder), theirs, self.gone.set)

    async def end(self) -> None:
        """Let the appending process be gone."""
        self.appending.cancel()
        await asyncio.gather(self.appending, return_exceptions=True)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Give an empty ledger."""
    pair = Pair(await SqliteLedger.open(tmp_path), tmp_path)
    yield pair
    await pair.end()
    await pair.parent.close()


class TestThroughLedger(LedgerConformance):
    """Holds the ledger of a process that appends through another one to what all adapters do."""

    @pytest.fixture
    async def ledger(self, pair: Pair) -> AsyncIterator[Ledger]:
        """Give an empty ledger."""
        ledger = await pair.open()
        yield ledger
        await ledger.close()


async def test_the_other_process_appends(pair: Pair) -> None:
    """One writer: the appending process makes all transactions."""
    child = await pair.open()
    before = pair.parent._commits.commits
    for number in range(10):
        assert await child.append([draft("k", b"%d" % number)]) == [number]
    assert pair.parent._commits.commits == before + 10
    assert len(await read_all(child, topic.EXPERIMENTS, AT)) == 10
    await child.close()


class Refusing(MemoryLedger):
    """Refuses everything."""

    def __init__(self, error: LedgerError) -> None:
        super().__init__()
        self._error = error

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Refuse."""
        raise self._error


class Odd(LedgerUnavailable):
    """An error that the other process does not have."""


@pytest.mark.parametrize(
    ("error", "met"),
    [
        (LedgerUnavailable("full"), LedgerUnavailable),
        (EventTooLarge("too large"), EventTooLarge),
        (LedgerError("refused"), LedgerError),
        (Odd("odd"), LedgerUnavailable),
    ],
)
async def test_errors_come_as_they_are(
    pair: Pair, error: LedgerError, met: type[LedgerError]
) -> None:
    """Whoever appended learns the reason, and whether it may pass."""
    child = await pair.open(Refusing(error))
    with pytest.raises(met, match=str(error)) as found:
        await child.append([draft("k")])
    assert type(found.value) is met
    await child.close()


class Slow(MemoryLedger):
    """Takes for ever."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Wait."""
        await asyncio.Event().wait()
        return []


async def test_an_appending_process_that_ends(pair: Pair) -> None:
    """Whoever waits learns that nobody knows; whoever comes later that nothing was appended."""
    child = await pair.open(Slow())
    waiting = asyncio.create_task(child.append([draft("k")]))
    await asyncio.sleep(0)
    assert not pair.gone.is_set()
    await pair.end()
    with pytest.raises(LedgerUnavailable, match="gone"):
        await waiting
    with pytest.raises(LedgerUnavailable, match="gone"):
        await child.append([draft("k")])
    await asyncio.wait_for(pair.gone.wait(), 10)
    assert await child.read(topic.EXPERIMENTS, AT, 0, 1) == []
    await child.close()


async def test_a_process_that_ends_is_appended_for(pair: Pair) -> None:
    """What it handed over whole before it was killed is appended; half a message is not."""
    child = await pair.open()
    append = asyncio.create_task(child.append([draft("k", b"whole")]))
    await asyncio.sleep(0)
    to_writer = child._to_writer  # type: ignore[attr-defined]  # of the adapter
    to_writer.write(b"\x00\x00\x01\x00half")
    await to_writer.drain()
    to_writer.transport.abort()
    async with asyncio.timeout(10):
        await pair.appending
    with contextlib.suppress(LedgerUnavailable):
        await append
    found = await read_all(pair.parent, topic.EXPERIMENTS, AT)
    assert [record.value for record in found] == [b"whole"]
    await child.close()
