"""Feeds: what is appended to some streams, read and rendered once for all clients at their end.

Theory of operation. Clients of the same streams share a feed. It follows each stream once, and
hands a record to those audiences alone that are of the record's experiment. An audience is all
clients that get the very same bytes; it renders a record once. What an audience has is given to
its clients in one piece: at once after a rest, and the rest is the longer the more clients were
given something. So all clients together take a bounded part of the event loop, whatever is
appended. A client that waits and has taken all gets a piece straight into its connection, without
its task being woken: that is most of what a client costs.

A client joins an audience at the feed's position in each stream, and reads what lies before by
itself. What it does not take waits in its mailbox, which is bounded: one that would get too much
is emptied and gets nothing more. Its client then reads by itself again, from where it is, and
joins again. Nothing waits for a slow client, and it misses nothing.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from rung.events import RungError
from rung.ledger import Ledger, Record, root_of

_MAILBOX_BYTES: Final = 1 << 20
_REST_PER_CLIENT_S: Final = 0.0005
"""Sending to a client takes some 10 µs, or 70 µs where its task has to be woken."""


class Source(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class Frame(NamedTuple):
    """What a record becomes: the event's name and its data, JSON."""

    event: str
    data: bytes


class Interest(NamedTuple):
    """What a client wants of an experiment; those with equal names get the same bytes."""

    experiment: str
    name: Hashable
    """Tells apart what is wanted of one experiment."""
    render: Callable[[Record], Frame | None]
    """Returns what a record of the experiment becomes, None if it is of no concern."""


class Piece(NamedTuple):
    """Some frames, as bytes, and the positions behind the last one."""

    data: bytes
    chunk: bytes
    """The same as a chunk of HTTP/1.1."""
    positions: Sequence[int]


Send = Callable[[Piece], bool]
"""Sends a piece at once where the connection has nothing unsent; returns whether it did."""


def bytes_of(frame: Frame, positions: Sequence[int]) -> bytes:
    """Return a frame as it is sent; its id tells the position behind it in each source."""
    lines = b"".join(b"data: " + line + b"\n" for line in frame.data.splitlines())
    return f"event: {frame.event}\nid: {id_of(positions)}\n".encode() + lines + b"\n"


def id_of(positions: Sequence[int]) -> str:
    """Return the id of what lies before some positions."""
    return ".".join(map(str, positions))


async def end_of(ledger: Ledger, sources: Sequence[Source]) -> list[int]:
    """Return where everything ends now."""
    return [await ledger.end(source.topic, source.partition) for source in sources]


class Mailbox:
    """What waits for one client."""

    def __init__(self, feed: "Feed", audience: "_Audience", send: Send | None) -> None:
        """Begin where the feed is."""
        self.start: Final = tuple(feed.positions)
        self.positions: Sequence[int] = self.start
        """Behind the last piece that was taken or sent."""
        self.overflowed = False
        """Whether the client did not keep up: it gets nothing more."""
        self._feed = feed
        self._audience = audience
        self._send = send
        self._pieces: deque[Piece] = deque()
        self._bytes = 0
        self._waiting: asyncio.Future[None] | None = None

    def put(self, piece: Piece) -> None:
        """Send a piece, or add it, or give up on the client if too much waits for it."""
        if self.overflowed:
            return
        if self._is_idle and self._send is not None and self._send(piece):
            self.positions = piece.positions
            return
        self._bytes += len(piece.data)
        self._pieces.append(piece)
        if self._bytes > _MAILBOX_BYTES:
            self.overflowed = True
            self._pieces.clear()
        self.wake()

    @property
    def _is_idle(self) -> bool:
        """Whether the client has taken all, and waits."""
        return not self._pieces and self._waiting is not None and not self._waiting.done()

    def take(self) -> Piece | None:
        """Return the oldest piece, None if nothing waits."""
        if not self._pieces:
            return None
        piece = self._pieces.popleft()
        self._bytes -= len(piece.data)
        self.positions = piece.positions
        return piece

    def passed(self) -> Sequence[int] | None:
        """Return the positions before which nothing is left for the client, if that is known."""
        if self._pieces or self.overflowed or self._audience.pending:
            return None
        self.positions = tuple(self._feed.positions)
        return self.positions

    async def wait(self, timeout_s: float) -> None:
        """Wait until something happens, at most as long as given.

        Raises:
            RungError: the feed failed.
        """
        if self._feed.failure is not None:
            raise self._feed.failure
        if self._pieces or self.overflowed:
            return
        self._waiting = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._waiting

    def wake(self) -> None:
        """Have `wait` return."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class _Audience:
    """Clients that get the very same bytes."""

    def __init__(self, interest: Interest) -> None:
        self.mailboxes: dict[Mailbox, None] = {}
        self.pending = bytearray()
        """What was rendered and is not given out yet."""
        self._positions: Sequence[int] = ()
        self._render = interest.render

    def take(self, record: Record, positions: Sequence[int]) -> None:
        """Render a record."""
        frame = self._render(record)
        if frame is not None:
            self.pending += bytes_of(frame, positions)
            self._positions = tuple(positions)
            if len(self.pending) > _MAILBOX_BYTES:
                self.give()

    def give(self) -> None:
        """Give out what was rendered."""
        if self.pending:
            data = bytes(self.pending)
            piece = Piece(data, b"%x\r\n%b\r\n" % (len(data), data), self._positions)
            self.pending.clear()
            for mailbox in self.mailboxes:
                mailbox.put(piece)


class _Delivery:
    """Has audiences give out what they have, with rests between."""

    def __init__(self) -> None:
        self._due: dict[_Audience, None] = {}
        self._rested_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, audience: _Audience) -> None:
        """Have an audience give out what it has, now or soon."""
        self._due[audience] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._rested_at), self._give)

    def _give(self) -> None:
        self._timer = None
        due, self._due = self._due, {}
        clients = 0
        for audience in due:
            clients += len(audience.mailboxes)
            audience.give()
        self._rested_at = asyncio.get_running_loop().time() + _REST_PER_CLIENT_S * clients


class Feed:
    """What is appended to some streams, for all clients at their end."""

    def __init__(self, ledger: Ledger, sources: Sequence[Source], delivery: _Delivery) -> None:
        self.positions: list[int] = []
        """Up to where each source was handed on."""
        self.failure: Exception | None = None
        self.users = 0
        self._ledger = ledger
        self._sources = sources
        self._delivery = delivery
        self._audiences: dict[str, dict[Hashable, _Audience]] = {}
        self._opened = asyncio.Event()
        self._moved = asyncio.Event()
        self._tasks = [asyncio.create_task(self._open())]

    async def reached(self, positions: Sequence[int]) -> None:
        """Wait until all before some positions was handed on.

        Raises:
            RungError: the ledger failed.
        """
        await self._opened.wait()
        while any(mine < wanted for mine, wanted in zip(self.positions, positions, strict=False)):
            if self.failure is not None:
                break
            await self._moved.wait()
        if self.failure is not None:
            raise self.failure

    @contextlib.contextmanager
    def joined(self, interest: Interest, send: Send | None = None) -> Iterator[Mailbox]:
        """Have what comes from now on sent, where it can be at once, or put into a mailbox."""
        audiences = self._audiences.setdefault(interest.experiment, {})
        audience = audiences.get(interest.name)
        if audience is None:
            audience = audiences[interest.name] = _Audience(interest)
        audience.give()  # it lies before the place where this mailbox begins
        mailbox = Mailbox(self, audience, send)
        audience.mailboxes[mailbox] = None
        try:
            yield mailbox
        finally:
            del audience.mailboxes[mailbox]
            if not audience.mailboxes:
                del audiences[interest.name]
                if not audiences:
                    del self._audiences[interest.experiment]

    def wake(self) -> None:
        """Have all who wait look again."""
        for audiences in self._audiences.values():
            for audience in audiences.values():
                for mailbox in audience.mailboxes:
                    mailbox.wake()

    async def close(self) -> None:
        """Stop following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self) -> None:
        try:
            self.positions = await end_of(self._ledger, self._sources)
        except RungError as error:
            self._fail(error)
        else:
            self._tasks += [
                asyncio.create_task(self._follow(index, position))
                for index, position in enumerate(self.positions)
            ]
        self._opened.set()

    async def _follow(self, index: int, position: int) -> None:
        source = self._sources[index]
        try:
            async for records in self._ledger.follow(source.topic, source.partition, position):
                self._hand_on(index, records)
        except Exception as error:  # noqa: BLE001 - clients raise it
            self._fail(error)

    def _hand_on(self, index: int, records: Sequence[Record]) -> None:
        for record in records:
            self.positions[index] = record.position + 1
            for audience in self._audiences.get(root_of(record.key), _NOBODY).values():
                audience.take(record, self.positions)
                if audience.pending:
                    self._delivery.add(audience)
        self._tell()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.wake()
        self._tell()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


_NOBODY: Final[dict[Hashable, _Audience]] = {}


class Feeds:
    """The feeds of one gateway: one for each set of streams that some client follows."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._feeds: dict[tuple[Source, ...], Feed] = {}
        self._delivery = _Delivery()

    @contextlib.asynccontextmanager
    async def of(self, sources: Sequence[Source]) -> AsyncIterator[Feed]:
        """Give the feed of some streams; it follows them while anybody uses it."""
        place = tuple(sources)
        feed = self._feeds.get(place)
        if feed is None or feed.failure is not None:
            feed = self._feeds[place] = Feed(self._ledger, place, self._delivery)
        feed.users += 1
        try:
            yield feed
        finally:
            feed.users -= 1
            if not feed.users:
                if self._feeds.get(place) is feed:
                    del self._feeds[place]
                await feed.close()

    def wake(self) -> None:
        """Have all clients look again, as the server goes down."""
        for feed in self._feeds.values():
            feed.wake()
