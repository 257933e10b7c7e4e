"""A sink acts on what readers take, and on nothing else."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs
from structlog.contextvars import get_contextvars

from rung.events import Event, Payload, encode
from rung.events.experiment import ExperimentEnded, ExperimentPaused
from rung.events.trial import TrialEnded
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime import PartitionFold
from rung.runtime import sink as module
from rung.runtime.sink import Sink, sink
from runtime.tally import Tally, pause

DECIDED = ExperimentPaused | ExperimentEnded


class Watched(MemoryLedger):
    """A ledger that tells when somebody commits."""

    def __init__(self) -> None:
        super().__init__(partitions=1)
        self._grew = asyncio.Event()

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
    await ledger.append([Draft(it.topic, it.key, encode(it)) for it in events])


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
        return [TrialEnded(experiment_id=event.key, trial_id=f"{event.key}.0")]

    task = asyncio.create_task(sink(ledger, Sink("t", "searches", "/rung/x", DECIDED, act)))
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
