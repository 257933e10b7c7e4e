"""Remote append: like a local one, also where either process ends."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rung.events import EventTooLarge, LedgerError, LedgerUnavailable, partition_of, topic
from rung.ledger import Draft, Ledger, MemoryLedger, SqliteLedger
from rung.ledger.factory import open_remote_append
from rung.ledger.sqlite.remote_append import serve_appends
from support.ledger.conformance import LedgerConformance, draft, read_all

pytestmark = pytest.mark.ledger

AT = partition_of("k", 4)


class Pair:
    """A parent's ledger, and the same ledger in a child that appends through it."""

    def __init__(self, parent: SqliteLedger, folder: Path) -> None:
        self.parent = parent
        self.disconnected = asyncio.Event()
        self._folder = folder

    async def open(self, parent: Ledger | None = None) -> Ledger:
        """Open it in a child; `end` ends the parent."""
        ours, theirs = socket.socketpair()
        self.appending = asyncio.create_task(serve_appends(parent or self.parent, ours))
        return await open_remote_append(str(self._folder), theirs, self.disconnected.set)

    async def end(self) -> None:
        """End the parent."""
        self.appending.cancel()
        await asyncio.gather(self.appending, return_exceptions=True)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Give an empty ledger."""
    pair = Pair(await SqliteLedger.open(tmp_path), tmp_path)
    yield pair
    await pair.end()
    await pair.parent.close()


class TestRemoteAppendLedger(LedgerConformance):
    """The ledger of a child process conforms to the port."""

    @pytest.fixture
    async def ledger(self, pair: Pair) -> AsyncIterator[Ledger]:
        """Give an empty ledger."""
        ledger = await pair.open()
        yield ledger
        await ledger.close()


async def test_the_other_process_appends(pair: Pair) -> None:
    """One writer: the parent makes all transactions."""
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
async def test_errors_keep_their_class_and_reason(
    pair: Pair, error: LedgerError, met: type[LedgerError]
) -> None:
    """An append raises the parent's reason, and whether it is retriable."""
    child = await pair.open(Refusing(error))
    with pytest.raises(met, match=str(error)) as found:
        await child.append([draft("k")])
    assert type(found.value) is met
    await child.close()


class Slow(MemoryLedger):
    """Never appends."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Wait."""
        await asyncio.Event().wait()
        return []


async def test_an_appending_process_that_ends(pair: Pair) -> None:
    """Pending appends raise an unknown outcome; later ones raise that nothing was appended."""
    child = await pair.open(Slow())
    waiting = asyncio.create_task(child.append([draft("k")]))
    await asyncio.sleep(0)
    assert not pair.disconnected.is_set()
    await pair.end()
    with pytest.raises(LedgerUnavailable, match="gone"):
        await waiting
    with pytest.raises(LedgerUnavailable, match="gone"):
        await child.append([draft("k")])
    await asyncio.wait_for(pair.disconnected.wait(), 10)
    assert await child.read(topic.EXPERIMENTS, AT, 0, 1) == []
    await child.close()


async def test_a_process_that_ends_is_appended_for(pair: Pair) -> None:
    """A child's complete messages are appended after it was killed; half a message is not."""
    child = await pair.open()
    append = asyncio.create_task(child.append([draft("k", b"whole")]))
    await asyncio.sleep(0)
    writer = child._writer  # type: ignore[attr-defined]  # of the adapter
    writer.write(b"\x00\x00\x01\x00half")
    await writer.drain()
    writer.transport.abort()
    async with asyncio.timeout(10):
        await pair.appending
    with contextlib.suppress(LedgerUnavailable):
        await append
    found = await read_all(pair.parent, topic.EXPERIMENTS, AT)
    assert [record.value for record in found] == [b"whole"]
    await child.close()
