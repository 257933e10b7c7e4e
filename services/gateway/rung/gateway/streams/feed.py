"""Feeds: what is appended to some streams, read and rendered once for all clients at their end.

Theory of operation. Clients of the same streams share a feed. It follows each stream once, and
passes a record only to the groups of the record's experiment. A group is all subscriptions that
get the very same bytes; it renders a record once. What a group has is sent to its clients in one
piece: at once after a pause, and the pause is the longer the more clients were sent something. So
all clients together take a bounded part of the event loop, whatever is appended. A client that
waits and has taken everything gets a piece straight into its connection, without its task being
woken: waking is most of what a client costs.

A client subscribes at the feed's position in each stream, and reads earlier records by itself.
What it does not take waits in its subscription, which is bounded: beyond that it is emptied and
gets nothing more. Its client then reads by itself again, from where it is, and subscribes again.
Nothing waits for a slow client, and it misses nothing.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from rung.events import RungError
from rung.ledger import Ledger, Record, root_of

_PENDING_BYTES: Final = 1 << 20
_PAUSE_PER_CLIENT_S: Final = 0.0005
"""Sending to a client takes some 10 µs, or 70 µs where its task has to be woken."""


class Source(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


class Frame(NamedTuple):
    """A rendered record: the event's name and its data, JSON."""

    event: str
    data: bytes


class Interest(NamedTuple):
    """Selects and renders an experiment's records; those with equal names give the same bytes."""

    experiment: str | None
    """None: all records of the streams are rendered."""
    name: Hashable
    """Distinguishes the interests in one experiment."""
    render: Callable[[Record], Frame | None]
    """Renders a record of the experiment; None if it is not selected."""


class Piece(NamedTuple):
    """Some frames, as bytes, and the positions behind the last one."""

    data: bytes
    chunk: bytes
    """The same as a chunk of HTTP/1.1."""
    positions: Sequence[int]


Send = Callable[[Piece], bool]
"""Sends a piece at once where the connection has nothing unsent; returns whether it did."""


def bytes_of(frame: Frame, positions: Sequence[int]) -> bytes:
    """Return a frame as it is sent; its id is the position behind it in each source."""
    lines = b"".join(b"data: " + line + b"\n" for line in frame.data.splitlines())
    return f"event: {frame.event}\nid: {id_of(positions)}\n".encode() + lines + b"\n"


def id_of(positions: Sequence[int]) -> str:
    """Return the id of what lies before some positions."""
    return ".".join(map(str, positions))


async def end_of(ledger: Ledger, sources: Sequence[Source]) -> list[int]:
    """Return where everything ends now."""
    return [await ledger.end(source.topic, source.partition) for source in sources]


class Subscription:
    """The pieces that wait for one client."""

    def __init__(self, feed: "Feed", group: "_Group", send: Send | None) -> None:
        """Begin where the feed is."""
        self.start: Final = tuple(feed.positions)
        self.positions: Sequence[int] = self.start
        """Behind the last piece that was taken or sent."""
        self.overflowed = False
        """Whether the client did not keep up: it gets nothing more."""
        self._feed = feed
        self._group = group
        self._send = send
        self._pieces: deque[Piece] = deque()
        self._bytes = 0
        self._waiting: asyncio.Future[None] | None = None

    def put(self, piece: Piece) -> None:
        """Send or add a piece; drop everything if too much waits."""
        if self.overflowed:
            return
        if self._is_idle and self._send is not None and self._send(piece):
            self.positions = piece.positions
            return
        self._bytes += len(piece.data)
        self._pieces.append(piece)
        if self._bytes > _PENDING_BYTES:
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
        """Return the positions before which nothing is left for the client, None if unknown."""
        if self._pieces or self.overflowed or self._group.pending:
            return None
        self.positions = tuple(self._feed.positions)
        return self.positions

    async def wait(self, timeout_s: float) -> None:
        """Wait for a piece, an overflow or `wake`, at most as long as given.

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


class _Group:
    """Subscriptions that get the very same bytes."""

    def __init__(self, interest: Interest) -> None:
        self.subscriptions: dict[Subscription, None] = {}
        self.pending = bytearray()
        """Rendered frames that are not sent yet."""
        self._positions: Sequence[int] = ()
        self._render = interest.render

    def take(self, record: Record, positions: Sequence[int]) -> None:
        """Render a record."""
        frame = self._render(record)
        if frame is not None:
            self.pending += bytes_of(frame, positions)
            self._positions = tuple(positions)
            if len(self.pending) > _PENDING_BYTES:
                self.flush()

    def flush(self) -> None:
        """Send what was rendered."""
        if self.pending:
            data = bytes(self.pending)
            piece = Piece(data, b"%x\r\n%b\r\n" % (len(data), data), self._positions)
            self.pending.clear()
            for subscription in self.subscriptions:
                subscription.put(piece)


class _Batching:
    """Flushes groups, with a pause behind each round that grows with the number of clients."""

    def __init__(self) -> None:
        self._due: dict[_Group, None] = {}
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, group: _Group) -> None:
        """Have a group flushed, now or soon."""
        self._due[group] = None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._paused_until), self._flush)

    def _flush(self) -> None:
        self._timer = None
        due, self._due = self._due, {}
        clients = 0
        for group in due:
            clients += len(group.subscriptions)
            group.flush()
        self._paused_until = asyncio.get_running_loop().time() + _PAUSE_PER_CLIENT_S * clients


class Feed:
    """What is appended to some streams, for all clients at their end."""

    def __init__(self, ledger: Ledger, sources: Sequence[Source], batching: _Batching) -> None:
        self.positions: list[int] = []
        """Up to where each source was published."""
        self.failure: Exception | None = None
        self.users = 0
        self._ledger = ledger
        self._sources = sources
        self._batching = batching
        self._groups: dict[str | None, dict[Hashable, _Group]] = {}
        """By experiment; None: of those who are interested in all."""
        self._opened = asyncio.Event()
        self._moved = asyncio.Event()
        self._tasks = [asyncio.create_task(self._open())]

    async def reached(self, positions: Sequence[int]) -> None:
        """Wait until all before some positions is published.

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
    def subscribed(self, interest: Interest, send: Send | None = None) -> Iterator[Subscription]:
        """Subscribe to what comes from now on; `send` is for pieces that can be sent at once."""
        groups = self._groups.setdefault(interest.experiment, {})
        group = groups.get(interest.name)
        if group is None:
            group = groups[interest.name] = _Group(interest)
        group.flush()  # earlier than this subscription
        subscription = Subscription(self, group, send)
        group.subscriptions[subscription] = None
        try:
            yield subscription
        finally:
            del group.subscriptions[subscription]
            if not group.subscriptions:
                del groups[interest.name]
                if not groups:
                    del self._groups[interest.experiment]

    def wake(self) -> None:
        """Wake all subscriptions."""
        for groups in self._groups.values():
            for group in groups.values():
                for subscription in group.subscriptions:
                    subscription.wake()

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
                self._publish(index, records)
        except Exception as error:  # noqa: BLE001 - clients raise it
            self._fail(error)

    def _publish(self, index: int, records: Sequence[Record]) -> None:
        for record in records:
            self.positions[index] = record.position + 1
            for experiment in (root_of(record.key), None):
                for group in self._groups.get(experiment, _NONE).values():
                    group.take(record, self.positions)
                    if group.pending:
                        self._batching.add(group)
        self._tell()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.wake()
        self._tell()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


_NONE: Final[dict[Hashable, _Group]] = {}


class Feeds:
    """The feeds of one gateway: one for each set of streams that some client follows."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._feeds: dict[tuple[Source, ...], Feed] = {}
        self._batching = _Batching()

    @contextlib.asynccontextmanager
    async def of(self, sources: Sequence[Source]) -> AsyncIterator[Feed]:
        """Give the feed of some streams, which follows them while it has users."""
        place = tuple(sources)
        feed = self._feeds.get(place)
        if feed is None or feed.failure is not None:
            feed = self._feeds[place] = Feed(self._ledger, place, self._batching)
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
        """Wake all clients, as the server shuts down."""
        for feed in self._feeds.values():
            feed.wake()
