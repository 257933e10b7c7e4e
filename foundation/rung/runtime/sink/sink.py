"""Sinks: an effect outside of the ledger for each event of a topic, which is recorded.

An effect is repeated after a crash, so it gets an idempotency key: the same for an event, however
often it is read or was written. An effect that fails raises a `RungError`:

* a *retriable* one (the target is away, or busy) is retried with back-off, and the partition
  waits, for as long as the sink's patience lasts;
* any other (the target refused) is retried a few times.

After that the event becomes a dead letter, and the sink goes on with the next. A refused effect is
also retried at each start and every hour; when it succeeds, the dead letter is settled. An event
that cannot be decoded, or on which the code raises anything else, becomes a dead letter at once,
and waits for an operator.

A sink must not carry out a decision that all readers ignore: one that a replica wrote late,
perhaps with older code, about a fact that has other decisions already. So it remembers the newest
cause of each key, as processors do.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from types import UnionType
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct, field

from rung.backoff import Backoff
from rung.events import Event, LedgerError, Payload, RungError, UndecodableEvent, decode_from
from rung.ledger import Draft, Ledger, Record
from rung.ledger.effective import Cause, cause_of, is_new_decision
from rung.runtime import tracing
from rung.runtime.assignment.assignment import AllPartitions, Assignment
from rung.runtime.checksum import with_checksum, without_checksum
from rung.runtime.consumer import Consumer
from rung.runtime.deadletter import Request
from rung.runtime.health.loops import CURRENT_LOOP, waiting_for
from rung.runtime.processor.processor import types_of
from rung.runtime.relay import number_of, numbered
from rung.runtime.retry import retry, supervise

_READ_MAX: Final = 2_000
_SAVE_EVERY: Final = 1_000
_AGAIN_S: Final = 3_600.0
"""Between two tries of refused effects."""
_BACKOFF: Final = Backoff(1.0, 60.0)

_log = structlog.get_logger()


class Sink(NamedTuple):
    """An effect outside of the ledger for each event of a topic."""

    name: str
    """Under which its position is committed."""
    topic: str
    """What it follows."""
    source: str
    """Of the facts that it writes."""
    handles: UnionType | type[Payload]
    """The types that it acts on; all others are skipped."""
    act: Callable[[Event, str], Awaitable[Sequence[Payload]]]
    """Causes the effect of an event, under an idempotency key; returns the facts to record."""
    appends: tuple[str, ...] = ()
    """The topics of these facts."""
    backoff: Backoff = _BACKOFF
    tries: int = 3
    """Of a refused effect, until its event becomes a dead letter."""
    patience_s: float = math.inf
    """For how long a retriable failure is retried, until the event becomes a dead letter."""


async def sink(ledger: Ledger, it: Sink, assignment: Assignment | None = None) -> None:
    """Run a sink on assigned partitions until cancelled, in order within each.

    Readiness does not depend on it.

    Raises:
        LedgerError: one that does not pass by itself.
    """

    async def work(partition: int) -> None:
        acting = _Acting(ledger, it, partition)
        await supervise(acting.run, name=f"{it.name}/{partition}", awaited=False)

    await (assignment or AllPartitions(ledger)).run(it.topic, work)


def key_of(ledger_id: str, record: Record, event: Event) -> str:
    """Return the idempotency key of an event's effect: the same wherever the event is read."""
    origin, sequence = number_of(ledger_id, record, event)
    if event.causeposition is None and event.origin and event.sequence is not None:
        origin, sequence = event.origin, event.sequence
    return f"{origin}/{sequence}"


class _Acting(Consumer):
    """One partition of a sink."""

    def __init__(self, ledger: Ledger, it: Sink, partition: int) -> None:
        super().__init__(ledger, it.name, it.topic, partition, types_of(it.handles))
        self._it = it
        self._seen = _Seen(ledger, it.name, it.topic, partition)

    async def _start(self) -> int:
        return await self._seen.open(await super()._start())

    def _decode(self, record: Record) -> Event | None:
        """Return the event; a decision of any type must name its cause."""
        return decode_from(record.topic, record.value)

    async def _take(self, record: Record, event: Event) -> list[Event]:
        if not self._seen.is_new(record.position, event):
            return []
        try:
            return await self._act(record, event, number_of(self._ledger.id, record, event))
        except LedgerError:
            raise
        except RungError:
            self._seen.postpone(record.position)
            raise

    async def _take_again(self, record: Record, event: Event) -> list[Event]:
        # An origin of its own: facts of later events have been recorded before.
        origin, sequence = number_of(self._ledger.id, record, event)
        return await self._act(record, event, (f"{origin}/{sequence}", 0))

    async def _act(self, record: Record, event: Event, number: tuple[str, int]) -> list[Event]:
        if event.type not in self._types:
            return []
        key = key_of(self._ledger.id, record, event)
        tries = 0

        async def attempt() -> Sequence[Payload]:
            nonlocal tries
            tries += 1
            return await self._it.act(event, key)

        def patience_s(error: BaseException) -> float:
            if isinstance(error, LedgerError) or not isinstance(error, RungError):
                return 0.0
            if error.retriable:
                return self._it.patience_s
            return math.inf if tries < self._it.tries else 0.0

        with tracing.about(event), waiting_for(f"what {self._name} acts on"):
            facts = await retry(
                attempt,
                "not done yet",
                backoff=self._it.backoff,
                patience_s=patience_s,
                sink=self._name,
                type=event.type,
            )
        return numbered(self._it, event, number, facts)

    async def _conclude(self, drafts: Sequence[Draft], position: int) -> None:
        # Postponed positions are saved before the position behind them is committed.
        if drafts:
            await self._ledger.append(drafts)
        await self._seen.save()
        await self._ledger.commit(self._name, *self._place, position)

    async def _answer_one(self, request: Request) -> bool:
        is_settled = await super()._answer_one(request)
        if is_settled:
            await self._settle(request.position)
        return is_settled

    async def _settle(self, position: int) -> None:
        if position in self._seen.postponed:
            self._seen.settle(position)
            await self._seen.save()

    async def _beside(self) -> None:
        """Retry refused effects, at the start and every hour."""
        CURRENT_LOOP.set(None)  # no part of the loop's health
        while True:
            for position in self._seen.postponed:
                try:
                    await self._try_again(position)
                except Exception as error:  # noqa: BLE001 - it is a dead letter already; next time
                    _log.info("not done yet", sink=self._name, reason=str(error))
            await asyncio.sleep(_AGAIN_S)

    async def _try_again(self, position: int) -> None:
        for record in await self._ledger.read(*self._place, position, 1):
            drafts = await self._drafts_again(record)
            await self._requests.answer(drafts, {position: record.key})
        await self._settle(position)


class _Image(Struct):
    position: int = 0
    """Behind the last event that was noted."""
    causes: dict[str, Cause] = field(default_factory=dict[str, Cause])
    postponed: list[int] = field(default_factory=list[int])
    """Positions of refused events, which are retried."""


class _Seen:
    """The newest causes, and the postponed events, of one partition."""

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
        """Positions of refused events, which are retried."""
        return tuple(self._image.postponed)

    def postpone(self, position: int) -> None:
        """Note that the event at a position was refused."""
        if position not in self._image.postponed:
            self._image.postponed.append(position)
            self._urgent = True

    def settle(self, position: int) -> None:
        """Note that a refused event succeeded, or was dropped."""
        self._image.postponed.remove(position)
        self._urgent = True

    async def open(self, position: int) -> int:
        """Read what precedes a position; return where to go on, there or later.

        Raises:
            LedgerError: the ledger does not answer.
        """
        self._image = await self._load()
        self._saved = self._image.position
        while self._image.position < position:
            count = min(position - self._image.position, _READ_MAX)
            place = (self._topic, self._partition, self._image.position)
            records = await self._ledger.read(*place, count)
            if not records:  # the ledger ends before: following it from there raises
                return position
            for record in records:
                try:
                    self.is_new(record.position, decode_from(self._topic, record.value))
                except UndecodableEvent:
                    self._image.position = record.position + 1
        return self._image.position

    def is_new(self, position: int, event: Event) -> bool:
        """Note the event at a position; return whether it is one that readers do not ignore."""
        self._image.position = position + 1
        if event.causeposition is None:
            return True
        return is_new_decision(cause_of(event), self._image.causes, event.key)

    async def save(self) -> None:
        """Save now and then, and at once where postponed events changed.

        The effects of all noted events must have been caused.

        Raises:
            LedgerError: postponed events changed, and that could not be saved: the position must
                not be committed, for after a restart they would not be tried again.
        """
        if self._image.position - self._saved < _SAVE_EVERY and not self._urgent:
            return
        value = with_checksum(msgspec.json.encode(self._image))
        try:
            await self._ledger.save_snapshot(self._name, self._partition, value)
            self._urgent = False
        except LedgerError as error:
            if self._urgent:
                raise
            _log.warning("no snapshot saved", name=self._name, reason=str(error))
        self._saved = self._image.position

    async def _load(self) -> _Image:
        try:
            value = await self._ledger.snapshot(self._name, self._partition)
            if value is None:
                return _Image()
            return msgspec.json.decode(without_checksum(value), type=_Image)
        except (LedgerError, msgspec.DecodeError) as error:
            _log.warning("snapshot ignored", name=self._name, reason=str(error))
            return _Image()
