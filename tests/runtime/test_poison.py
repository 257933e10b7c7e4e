"""Poison of each kind in each kind of component: it concerns itself alone, is on record, and ends.

Processors are in `test_rejection.py`, projections in `test_projection.py`. Periodic sinks decode
nothing: what a look of theirs raises is tried again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

import pytest

from rung.events import Event, Payload, decode, encode, fact
from rung.events.allocation import AllocationLost
from rung.events.deadletter import (
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.events.experiment import KillRequested, PauseRequested
from rung.events.topic import DEADLETTER
from rung.events.upcast import UPCASTERS
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime import Rejected, deadletter
from rung.runtime.checksum import with_checksum
from rung.runtime.relay import Relay
from rung.runtime.service import Component, serve
from rung.runtime.sink.batch_sink import BatchSink, Reject
from rung.runtime.sink.sink import Sink
from runtime.tally import kill, pause

_TOPIC: Final = "experiments"
_BAD: Final = "p"
"""The key of the poison."""
_HANDLES: Final = PauseRequested | KillRequested


class _Kind(Protocol):
    """A component whose effects can be seen."""

    reader: str

    def component(self, *, breaks: bool) -> Component:
        """Return it, of a release that breaks at a kill, or of a later one."""

    async def effects(self, ledger: MemoryLedger) -> set[str]:
        """Return the ids of the events that it took."""


async def _caused(ledger: MemoryLedger, topic: str) -> set[str]:
    """Return which events caused something on a topic."""
    found: set[str] = set()
    for record in await ledger.read(topic, 0, 0, 1_000):
        with contextlib.suppress(Exception):
            found.add(decode(record.value).cause or "")
    return found


def _answer(data: PauseRequested | KillRequested, *, breaks: bool) -> list[Payload]:
    if breaks and isinstance(data, KillRequested):
        raise KeyError(data.experiment_id)
    key = data.experiment_id
    return [
        AllocationLost(
            pool="p",
            allocation_id=f"{key}.0.1",
            experiment_id=key,
            trial_id=f"{key}.0",
            run=1,
            reason="",
        )
    ]


class _Relay:
    reader = "intake"

    def component(self, *, breaks: bool) -> Component:
        def translate(data: PauseRequested | KillRequested) -> list[Payload]:
            return _answer(data, breaks=breaks)

        return Relay("intake", _TOPIC, "/rung/intake", _HANDLES, (_TOPIC,), translate)

    async def effects(self, ledger: MemoryLedger) -> set[str]:
        return await _caused(ledger, _TOPIC)


class _Sink:
    reader = "hook"

    def __init__(self) -> None:
        self.acted: set[str] = set()

    def component(self, *, breaks: bool) -> Component:
        async def act(event: Event, _key: str) -> Sequence[Payload]:
            assert isinstance(event.data, PauseRequested | KillRequested)
            made = _answer(event.data, breaks=breaks)
            self.acted.add(event.id)
            return made

        return Sink("hook", _TOPIC, "/rung/hook", _HANDLES, act, (_TOPIC,))

    async def effects(self, _: MemoryLedger) -> set[str]:
        return self.acted


class _Store:
    """A batch store in memory."""

    absorbed_bytes = pending_bytes = 0

    def __init__(self) -> None:
        self.breaks = True
        self.written: set[str] = set()
        self.known: dict[tuple[str, int], int] = {}
        self._absorbed: list[Record] = []
        self._reject: Reject | None = None

    @contextlib.asynccontextmanager
    async def serving(self, reject: Reject) -> AsyncIterator[None]:
        self._absorbed, self._reject = [], reject
        yield

    async def positions(self) -> Mapping[tuple[str, int], int]:
        return self.known

    def absorb(self, records: Sequence[Record]) -> None:
        self._absorbed += records

    async def cut(self) -> None:
        """Make nothing of it: all is written at once."""

    async def write(self) -> bool:
        records, self._absorbed = self._absorbed, []
        for record in records:
            if reason := await self.write_again(record):
                assert self._reject is not None
                await self._reject([Rejected(record, reason)])
            self.known[record.topic, record.partition] = record.position + 1
        return bool(records)

    async def write_again(self, record: Record) -> str | None:
        try:
            event = decode(record.value)
            assert isinstance(event.data, PauseRequested | KillRequested)
            _answer(event.data, breaks=self.breaks)
        except Exception as error:  # noqa: BLE001 - as a store has to
            return str(error)
        self.written.add(event.id)
        return None

    def ahead(self, topic: str, partition: int, start: int, end: int) -> Exception:
        return AssertionError((topic, partition, start, end))


class _BatchSink:
    reader = "series"

    def __init__(self) -> None:
        self._store = _Store()

    def component(self, *, breaks: bool) -> Component:
        self._store.breaks = breaks
        return BatchSink("series", (_TOPIC,), self._store, batch_s=0.01)

    async def effects(self, _: MemoryLedger) -> set[str]:
        return self._store.written


_KINDS: Final[dict[str, Callable[[], _Kind]]] = {
    "relay": _Relay,
    "sink": _Sink,
    "batch sink": _BatchSink,
}
_PAUSE: Final = PauseRequested.TYPE
_POISON: Final[dict[str, Callable[[], tuple[Event, bytes]]]] = {
    "no JSON": lambda: (pause(1, _BAD), b"{"),
    "unknown type": lambda: _typed("rung.experiment.frozen.v1"),
    "wrong version": lambda: _typed(_PAUSE.replace(".v1", ".v9")),
    "raising code": lambda: (kill(1, _BAD), encode(kill(1, _BAD))),
}


def _typed(kind: str) -> tuple[Event, bytes]:
    event = pause(1, _BAD)
    return event, encode(event).replace(_PAUSE.encode(), kind.encode())


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - several things are looked at
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def _running(ledger: MemoryLedger, it: Component) -> AsyncIterator[None]:
    task = asyncio.create_task(serve(ledger, (it,)))
    try:
        yield
        assert not task.done(), "it ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _append(ledger: MemoryLedger, *events: Event) -> None:
    await ledger.append([Draft.of(it) for it in events])


async def _letters(ledger: MemoryLedger) -> list[Payload]:
    records = await MemoryLedger.read(ledger, "deadletter", 0, 0, 1_000)
    return [decode(record.value).data for record in records]


async def _ask(ledger: MemoryLedger, about: MessageRejected, *, drop: bool) -> None:
    """Do as `rung deadletter retry` and `drop`."""
    kind = MessageDropped if drop else MessageRetryRequested
    data = kind(
        topic=about.topic,
        partition=about.partition,
        position=about.position,
        key=about.key,
        reader=about.reader,
    )
    await _append(ledger, fact(data, source="/rung/gateway", origin="g", sequence=1, time="t"))


class _Watched(MemoryLedger):
    """Notes from where dead letters are read."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.read_from: list[int] = []

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return records."""
        if topic == DEADLETTER:
            self.read_from.append(position)
        return await super().read(topic, partition, position, limit)

    def follow(self, topic: str, partition: int, position: int) -> AsyncIterator[Sequence[Record]]:
        """Yield records."""
        if topic == DEADLETTER:
            self.read_from.append(position)
        return super().follow(topic, partition, position)


@pytest.mark.parametrize("kind", _KINDS)
async def test_what_was_answered_is_not_read_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start goes on behind it, and does what was asked since."""
    monkeypatch.setattr(deadletter, "_SAVE_EVERY", 1, raising=False)
    it, ledger = _KINDS[kind](), _Watched()
    await ledger.append([Draft(_TOPIC, _BAD, b"{")])

    async def kinds() -> list[type[Payload]]:
        return [type(each) for each in await _letters(ledger)]

    async def is_dead() -> bool:
        return bool(await _letters(ledger))

    async def is_noted() -> bool:
        value = await ledger.snapshot(f"requests/{it.reader}/{_TOPIC}", 0)
        return value == with_checksum(b"3")

    async def is_settled() -> bool:
        return (await kinds())[-1] is MessageTaken

    async with _running(ledger, it.component(breaks=True)):
        await _until(is_dead)
        (letter,) = await _letters(ledger)
        assert isinstance(letter, MessageRejected)
        await _ask(ledger, letter, drop=False)
        await _until(is_noted)
    assert await kinds() == [MessageRejected, MessageRetryRequested, MessageRejected]
    ledger.read_from.clear()
    await _ask(ledger, letter, drop=True)
    async with _running(ledger, it.component(breaks=True)):
        await _until(is_settled)
    assert min(ledger.read_from) == 3
    assert len(await kinds()) == 5


@pytest.mark.parametrize("poison", _POISON)
@pytest.mark.parametrize("kind", _KINDS)
async def test_poison_concerns_itself_alone(
    kind: str, poison: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else goes on; the poison is a dead letter, until a later release takes it."""
    it, (event, value) = _KINDS[kind](), _POISON[poison]()
    ledger = MemoryLedger(partitions=1)
    good = [pause(1, "a"), pause(2, "a"), pause(1, "b")]
    await _append(ledger, good[0])
    await ledger.append([Draft(_TOPIC, _BAD, value)])
    await _append(ledger, *good[1:])

    async def goes_on() -> bool:
        return {each.id for each in good} <= await it.effects(ledger)

    async def is_dead() -> bool:
        return bool(await _letters(ledger))

    async def is_settled() -> bool:
        return any(isinstance(each, MessageTaken) for each in await _letters(ledger))

    async with _running(ledger, it.component(breaks=True)):
        await _until(goes_on)
        await _until(is_dead)
    letter = (await _letters(ledger))[0]
    assert isinstance(letter, MessageRejected)
    assert (letter.reader, letter.topic, letter.position) == (it.reader, _TOPIC, 1)
    assert (letter.key, letter.value) == (_BAD, value.decode())
    assert event.id not in await it.effects(ledger)

    dropped = poison == "no JSON"
    for name in ("rung.experiment.frozen.v1", _PAUSE.replace(".v1", ".v9")):
        monkeypatch.setitem(UPCASTERS, name, lambda data: (_PAUSE, data))
    await _ask(ledger, letter, drop=dropped)
    good.append(pause(2, "b"))
    await _append(ledger, good[-1])
    async with _running(ledger, it.component(breaks=False)):
        await _until(goes_on)
        await _until(is_settled)
    settled = [each for each in await _letters(ledger) if isinstance(each, MessageTaken)]
    assert [(each.reader, each.position) for each in settled] == [(it.reader, 1)]
    assert (event.id in await it.effects(ledger)) == (not dropped)
