"""A sink acts on what readers take, and on nothing else."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs
from structlog.contextvars import get_contextvars

from rung.backoff import Backoff
from rung.events import Event, LedgerUnavailable, Payload, decode, encode
from rung.events.allocation import AllocationLost
from rung.events.deadletter import MessageRejected, MessageTaken
from rung.events.errors import EffectRefused, EffectUnavailable
from rung.events.experiment import ExperimentEnded, ExperimentPaused
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime import PartitionFold
from rung.runtime.sink import sink as module
from rung.runtime.sink.sink import Sink, sink
from runtime.tally import Tally, pause

DECIDED = ExperimentPaused | ExperimentEnded


class Watched(MemoryLedger):
    """A ledger that tells when somebody commits."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self.unsaved = 0
        """So many snapshots are refused."""
        self._grew = asyncio.Event()

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Save, or fail."""
        if self.unsaved:
            self.unsaved -= 1
            raise LedgerUnavailable("the disk is full")
        await super().save_snapshot(name, partition, value)

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Remember a position."""
        await super().commit(consumer, topic, partition, position)
        self._grew.set()

    async def committed(self, position: int) -> None:
        """Wait until the sink is there."""
        while await self.position("t", "searches", 0) < position:
            self._grew.clear()
            await self._grew.wait()


def _decisions(count: int, *, generosity: int = 2) -> list[Event]:
    """Return what follows from so many pauses of one key."""
    fold = PartitionFold(Tally(generosity))
    facts = [pause(number) for number in range(1, count + 1)]
    records = [Record(it.topic, 0, at, it.key, encode(it)) for at, it in enumerate(facts)]
    return [event for record in records for event in fold.fold(record).new]


async def _append(ledger: MemoryLedger, events: Sequence[Event]) -> None:
    await ledger.append([Draft.of(it) for it in events])


async def _acted(ledger: Watched, known: list[dict[str, Any]] | None = None) -> list[str]:
    """Return the ids of what is acted on by a sink that starts now.

    Args:
        ledger: where it follows.
        known: gets what log lines say of each of them.
    """
    acted: list[str] = []

    async def act(event: Event, _key: str) -> list[Payload]:
        acted.append(event.id)
        if known is not None:
            known.append(get_contextvars())
        if not isinstance(event.data, ExperimentPaused):
            return []
        return [
            AllocationLost(
                pool="p",
                allocation_id="a",
                experiment_id=event.key,
                trial_id=f"{event.key}.0",
                run=1,
                reason="",
            )
        ]

    task = asyncio.create_task(
        sink(ledger, Sink("t", "searches", "/rung/x", DECIDED, act, ("experiments",)))
    )
    await asyncio.wait_for(ledger.committed(await ledger.end("searches", 0)), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return acted


async def test_a_late_decision_is_not_acted_on() -> None:
    """A doubled one, and one that nobody takes since its fact was decided otherwise."""
    decided = _decisions(3, generosity=1)
    otherwise = [it for it in _decisions(3) if it.causeindex == 1][:2]
    ledger = Watched()
    await _append(ledger, [*decided, *otherwise, *decided])

    assert await _acted(ledger) == [it.id for it in decided]


@pytest.mark.parametrize("save_every", [1, 1_000])
async def test_nor_after_a_restart(save_every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a snapshot or without, a sink knows what its predecessor saw."""
    monkeypatch.setattr(module, "_SAVE_EVERY", save_every)
    decided = _decisions(4)
    ledger = Watched()
    await _append(ledger, decided[:6])
    first = await _acted(ledger)
    await _append(ledger, [*decided[:4], *decided[6:]])

    assert (await ledger.snapshot("seen/t", 0) is not None) == (save_every == 1)
    assert first == [it.id for it in decided[:6]]
    assert await _acted(ledger) == [it.id for it in decided[6:]]


async def test_what_names_no_cause_is_not_acted_on() -> None:
    """It becomes a dead letter, before a restart and after it; what follows is acted on."""
    decided = _decisions(2)
    ledger = Watched()
    foreign = encode(pause(1))
    await ledger.append([Draft("searches", "a", foreign)])
    await _append(ledger, decided[:2])
    first = await _acted(ledger)
    await _append(ledger, decided[2:])
    second = await _acted(ledger)
    (letter,) = await ledger.read("deadletter", 0, 0, 10)

    assert first + second == [it.id for it in decided]
    assert b"does not name its cause" in letter.value


async def test_a_damaged_snapshot_is_ignored() -> None:
    """All is learnt again from the ledger."""
    decided = _decisions(2)
    ledger = Watched()
    await _append(ledger, decided)
    await _acted(ledger)
    await ledger.save_snapshot("seen/t", 0, b"{")
    await _append(ledger, decided)

    assert await _acted(ledger) == []


async def test_what_is_logged_of_an_act_says_what_it_is_for() -> None:
    """While it acts on an event, log lines carry the event's id, its experiment and its trace."""
    ledger = Watched()
    (decided,) = _decisions(1, generosity=1)
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    traced = structs.replace(decided, traceparent=f"00-{trace_id}-00f067aa0ba902b7-01")
    await _append(ledger, [traced])
    known: list[dict[str, Any]] = []
    await _acted(ledger, known)
    (names,) = known
    assert (names["event_id"], names["experiment"], names["trace"]) == (decided.id, "a", trace_id)


class _Outside:
    """What a sink acts on: fails as told, and remembers under which keys it was asked."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.keys: list[str] = []
        self.done: list[str] = []

    async def act(self, event: Event, key: str) -> list[Payload]:
        """Fail, or do it."""
        self.keys.append(key)
        if self.errors:
            raise self.errors.pop(0)
        self.done.append(event.id)
        return []

    def sink(self, **options: Any) -> Sink:
        """Return a sink that acts on it."""
        fast = Backoff(0.001, 0.001)
        return Sink("t", "searches", "/rung/x", DECIDED, self.act, backoff=fast, **options)


async def _run(ledger: Watched, it: Sink, letters: int) -> list[Payload]:
    """Run a sink over all that is there, until there are so many dead letters and answers."""
    task = asyncio.create_task(sink(ledger, it))
    async with asyncio.timeout(20):
        await ledger.committed(await ledger.end("searches", 0))
        while await ledger.end("deadletter", 0) < letters:  # noqa: ASYNC110 - beside the loop
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [decode(it.value).data for it in await ledger.read("deadletter", 0, 0, 100)]


async def test_what_is_away_is_asked_again_under_one_key() -> None:
    """Each event has a key of its own, the same for every try, replica and repetition."""
    decided = _decisions(2, generosity=1)
    outside = _Outside(*[EffectUnavailable("away")] * 5)
    ledger = Watched()
    await _append(ledger, decided)

    assert await _run(ledger, outside.sink(), 0) == []
    assert outside.done == [it.id for it in decided]
    first, last = dict.fromkeys(outside.keys)
    assert outside.keys == [first] * 6 + [last]
    again = _Outside()
    other = Watched()
    other._id = ledger.id
    await _append(other, [decided[1], *decided])
    await _run(other, again.sink(), 0)
    assert again.keys == [last]


async def test_what_was_refused_is_not_forgotten_where_it_cannot_be_saved() -> None:
    """Its position is committed only once a restart would find that it is to be tried again."""
    decided = _decisions(2, generosity=1)
    ledger = Watched()
    ledger.unsaved = 2
    await _append(ledger, decided)
    await _run(ledger, _Outside(*[EffectRefused("no")] * 9).sink(tries=1), 1)
    assert ledger.unsaved == 0
    again = _Outside()
    await _run(ledger, again.sink(), await ledger.end("deadletter", 0) + 2)
    assert set(again.done) == {event.id for event in decided}


async def test_patience_with_what_is_away_may_end() -> None:
    """A receiver that stays away holds up the others for so long and no longer."""
    decided = _decisions(2, generosity=1)
    outside = _Outside(*[EffectUnavailable("away")] * 10_000)
    ledger = Watched()
    await _append(ledger, decided[:1])
    (letter,) = await _run(ledger, outside.sink(patience_s=0.05), 1)

    assert isinstance(letter, MessageRejected)
    assert "away" in letter.reason


async def test_what_is_refused_is_a_dead_letter_until_it_is_taken() -> None:
    """After a few tries the sink goes on; at its next start it succeeds, and the letter ends."""
    decided = _decisions(2, generosity=1)
    outside = _Outside(*[EffectRefused("no")] * 3)
    ledger = Watched()
    await _append(ledger, decided)

    (letter,) = await _run(ledger, outside.sink(tries=3), 1)
    assert isinstance(letter, MessageRejected)
    assert (letter.reader, letter.position, letter.reason) == ("t", 0, "EffectRefused: no")
    assert outside.done == [decided[1].id]
    letter, taken = await _run(ledger, outside.sink(), 2)
    assert isinstance(taken, MessageTaken)
    assert taken.position == 0
    assert outside.done == [decided[1].id, decided[0].id]
    assert await _run(ledger, outside.sink(), 2) == [letter, taken]
    assert len(outside.done) == 2
