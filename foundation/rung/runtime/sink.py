"""Sinks: what a topic of decisions asks for is done outside of the ledger, and recorded.

A processor keeps the newest cause of a key with the key's state, and a relay leaves it to its
destination. A sink that does what a decision asks (deletes files) must not do what no reader
takes: a decision that a replica wrote late, perhaps with older code, about a fact that was decided
otherwise meanwhile. Repeating what was done is harmless; this is not. So a sink remembers the
newest cause of each key.

It also remembers what an object store refused: it goes on with the next, and tries that again now
and then. Whatever else an act raises makes a dead letter of its decision.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import UnionType
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct, field

from rung.events import Event, LedgerError, Payload, UndecodableEvent, decode_from, encode
from rung.events.errors import ObjectError
from rung.ledger import Draft, Ledger, Record
from rung.runtime import tracing
from rung.runtime.assignment import Share, Whole
from rung.runtime.consumer import Consumer
from rung.runtime.deadletter import Letter
from rung.runtime.health.loops import CURRENT
from rung.runtime.processor import types_of
from rung.runtime.relay import number_of, numbered
from rung.runtime.retry import supervise

_READ_MAX: Final = 2_000
_SAVE_EVERY: Final = 1_000
_AGAIN_S: Final = 3_600.0
"""Between two tries of what was postponed."""

_log = structlog.get_logger()


class Sink(NamedTuple):
    """An effect outside of the ledger for each decision of a topic."""

    name: str
    """Under which its position is committed."""
    topic: str
    """Of decisions; what it follows."""
    source: str
    """Of the facts that it writes."""
    handles: UnionType | type[Payload]
    """The types that it acts on; all others are skipped."""
    act: Callable[[Event], Awaitable[Sequence[Payload]]]
    """Does what an event asks, and returns the facts to record; safe to repeat, for it sees an
    event again after a crash. It raises ObjectError where an object store refuses."""


async def sink(ledger: Ledger, it: Sink, share: Share | None = None) -> None:
    """Run a sink until cancelled. Events are acted on in order within a partition.

    A backlog keeps nobody from relying on this process: it is ready meanwhile.

    Args:
        ledger: read from and appended to.
        it: what is done.
        share: says which partitions are this replica's; all are if not given.

    Raises:
        LedgerError: one that does not pass by itself.
    """

    async def work(partition: int) -> None:
        acting = _Acting(ledger, it, partition)
        await supervise(acting.run, name=f"{it.name}/{partition}", awaited=False)

    await (share or Whole(ledger)).hold(it.topic, work)


class _Acting(Consumer):
    """One partition of a sink."""

    def __init__(self, ledger: Ledger, it: Sink, partition: int) -> None:
        super().__init__(ledger, it.name, it.topic, partition, types_of(it.handles))
        self._it = it
        self._seen = _Seen(ledger, it.name, it.topic, partition)

    async def _open(self, position: int) -> int:
        return await self._seen.open(position)

    def _decode(self, record: Record) -> Event | None:
        """Return the event; also one of another type must name what caused it."""
        return decode_from(record.topic, record.value)

    async def _take(self, record: Record, event: Event) -> list[Event]:
        if not self._seen.is_new(record.position, event):
            return []
        try:
            return await self._act(event, number_of(self._ledger.id, record, event))
        except ObjectError:
            self._seen.postpone(record.position)
            return []

    async def _take_again(self, record: Record, event: Event) -> list[Event]:
        # An origin of its own: what was recorded of later decisions went before.
        origin, sequence = number_of(self._ledger.id, record, event)
        return await self._act(event, (f"{origin}/{sequence}", 0))

    async def _act(self, event: Event, number: tuple[str, int]) -> list[Event]:
        if event.type not in self._types:
            return []
        with tracing.about(event):  # what is logged of an act says what it is for
            facts = await self._it.act(event)
        return numbered(event, number, facts, source=self._it.source)

    async def _close_batch(self) -> None:
        await self._seen.save()

    async def _answer_one(self, letter: Letter) -> None:
        await super()._answer_one(letter)
        if letter.drop and letter.position in self._seen.postponed:
            self._seen.settle(letter.position)
            await self._seen.save()

    async def _beside(self) -> None:
        """Try what was postponed, at the start and now and then."""
        CURRENT.set(None)  # the loop's signs of life are those of the loop alone
        while True:
            for position in self._seen.postponed:
                try:
                    await self._try_again(position)
                except LedgerError as error:
                    _log.warning("not tried again yet", name=self._name, reason=str(error))
                except ObjectError:
                    continue  # logged already; next time
            await asyncio.sleep(_AGAIN_S)

    async def _try_again(self, position: int) -> None:
        for record in await self._ledger.read(*self._place, position, 1):
            event = decode_from(record.topic, record.value)
            facts = await self._take_again(record, event)
            await self._ledger.append([Draft(it.topic, it.key, encode(it)) for it in facts])
        self._seen.settle(position)
        await self._seen.save()


class _Image(Struct):
    position: int = 0
    """Behind the last decision that was seen."""
    causes: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    postponed: list[int] = field(default_factory=list[int])
    """Positions of decisions that were not acted on yet."""


class _Seen:
    """What was seen of one partition of a topic of decisions."""

    def __init__(self, ledger: Ledger, name: str, topic: str, partition: int) -> None:
        self._ledger = ledger
        self._name = f"seen/{name}"
        self._topic = topic
        self._partition = partition
        self._image = _Image()
        self._saved = 0
        self._urgent = False

    @property
    def postponed(self) -> tuple[int, ...]:
        """Where decisions lie that are still to be acted on."""
        return tuple(self._image.postponed)

    def postpone(self, position: int) -> None:
        """Take note that the decision at a position is still to be acted on."""
        if position not in self._image.postponed:
            self._image.postponed.append(position)
            self._urgent = True

    def settle(self, position: int) -> None:
        """Take note that what was postponed is done."""
        self._image.postponed.remove(position)
        self._urgent = True

    async def open(self, position: int) -> int:
        """Learn of what lies before a position; return where to go on, there or later.

        Raises:
            LedgerError: the ledger does not answer.
        """
        self._image = await self._load()
        self._saved = self._image.position
        while self._image.position < position:
            count = min(position - self._image.position, _READ_MAX)
            place = (self._topic, self._partition, self._image.position)
            records = await self._ledger.read(*place, count)
            if not records:  # the ledger ends before: whoever follows it from there says so
                return position
            for record in records:
                try:
                    self.is_new(record.position, decode_from(self._topic, record.value))
                except UndecodableEvent:
                    self._image.position = record.position + 1
        return self._image.position

    def is_new(self, position: int, event: Event) -> bool:
        """Take note of the decision at a position; return whether readers take it."""
        self._image.position = position + 1
        assert event.causeposition is not None, event
        assert event.causeindex is not None, event
        cause = (event.causeposition, event.causeindex)
        if cause <= self._image.causes.get(event.key, (-1, -1)):
            return False
        self._image.causes[event.key] = cause
        return True

    async def save(self) -> None:
        """Save what was seen, now and then; what was seen must have been acted on.

        What was postponed, or is no longer, is saved at once.
        """
        if self._image.position - self._saved < _SAVE_EVERY and not self._urgent:
            return
        value = msgspec.json.encode(self._image)
        try:
            await self._ledger.save_snapshot(self._name, self._partition, value)
            self._urgent = False
        except LedgerError as error:
            _log.warning("no snapshot saved", name=self._name, reason=str(error))
        self._saved = self._image.position

    async def _load(self) -> _Image:
        try:
            value = await self._ledger.snapshot(self._name, self._partition)
            return _Image() if value is None else msgspec.json.decode(value, type=_Image)
        except (LedgerError, msgspec.DecodeError) as error:
            _log.warning("snapshot ignored", name=self._name, reason=str(error))
            return _Image()
