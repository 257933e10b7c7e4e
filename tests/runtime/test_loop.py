"""The host on a real ledger: recovery, fencing, dead letters, forwarding, audit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence

import pytest
import structlog.testing

from rung.events import Event, LedgerUnavailable, Payload, decode, encode, fact
from rung.events.allocation import AllocationLost
from rung.events.deadletter import (
    FactRejected,
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.events.experiment import ExperimentEnded, ExperimentPaused, KillRequested
from rung.ledger import Draft, Record
from rung.ledger.memory import MemoryLedger
from rung.runtime import audit, host
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.replay import recover
from rung.runtime.processor.snapshot import Snapshots
from rung.runtime.relay import Relay, relay
from runtime.tally import Count, Tally, kill, pause, resume


async def _append(ledger: MemoryLedger, *events: Event) -> None:
    await ledger.append([Draft.of(e) for e in events])


async def _events(ledger: MemoryLedger, topic: str) -> list[Event]:
    records: list[Record] = []
    for partition in range(ledger.partitions(topic)):
        records += await ledger.read(topic, partition, 0, 10_000)
    return [decode(record.value) for record in records]


async def _until(
    ledger: MemoryLedger, topic: str, count: int, *, repeated: bool = False
) -> list[Event]:
    """Wait until a topic holds so many events, each counted once unless `repeated`."""

    async def read() -> list[Event]:
        async for _ in _any_change(ledger, topic):
            events = await _events(ledger, topic)
            ids = [event.id for event in events]
            if len(ids if repeated else set(ids)) >= count:
                return events
        raise AssertionError

    return await asyncio.wait_for(read(), 10)


async def _any_change(ledger: MemoryLedger, topic: str) -> AsyncIterator[None]:
    changed = asyncio.Event()
    changed.set()

    async def watch(partition: int) -> None:
        async for _ in ledger.follow(topic, partition, 0):
            changed.set()

    async with _running(*(watch(p) for p in range(ledger.partitions(topic)))):
        while True:
            await changed.wait()
            changed.clear()
            yield


@contextlib.asynccontextmanager
async def _running(*work: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Unseeing(Observer[Count]):
    """An observer that can make nothing of what it sees."""

    def __init__(self) -> None:
        self.shown = 0

    def see(self, records: Sequence[Record], decisions: Sequence[Event]) -> None:
        """Fail."""
        self.shown += 1
        raise ValueError("cannot see")


async def test_an_observer_that_fails_keeps_nothing_from_being_decided() -> None:
    """It is shown what comes after, too; the log says once that it fails."""
    ledger, observer = MemoryLedger(), _Unseeing()
    with structlog.testing.capture_logs() as logs:
        async with _running(host(ledger, Tally(), observer=observer)):
            for number in (1, 2):
                await _append(ledger, pause(number))
                await _until(ledger, "searches", 2 * number)

    assert observer.shown >= 1
    failed = [line for line in logs if line["event"].startswith("not all is measured")]
    assert len(failed) == 1


async def test_facts_are_decided_as_they_arrive() -> None:
    """What was there before the start and what comes after it are decided alike."""
    ledger = MemoryLedger(partitions=2)
    await _append(ledger, pause(1, "a"))
    async with _running(host(ledger, Tally())):
        await _until(ledger, "searches", 2)
        await _append(ledger, pause(1, "b"), resume(2, "b"))
        decided = await _until(ledger, "searches", 4)

    assert sorted((e.key, e.type) for e in decided) == [
        ("a", ExperimentEnded.TYPE),
        ("a", ExperimentPaused.TYPE),
        ("b", ExperimentEnded.TYPE),
        ("b", ExperimentPaused.TYPE),
    ]


async def test_starting_again_decides_nothing_twice() -> None:
    """A second start, with snapshots and without, appends only what is new."""
    ledger = MemoryLedger(partitions=1)
    for count in range(1, 6):
        await _append(ledger, pause(count))
        async with _running(host(ledger, Tally(), snapshot_every=2)):
            await _until(ledger, "searches", 2 * count)
    decided = await _events(ledger, "searches")

    assert [(e.causeposition, e.causeindex) for e in decided] == [
        (position, index) for position in range(5) for index in range(2)
    ]
    assert await ledger.snapshot("state/searcher", 0) is not None


async def test_a_store_that_takes_no_snapshots_stops_nothing() -> None:
    """Whether it refuses or never answers, decisions go on; when it is back, snapshots do."""

    class Refusing(MemoryLedger):
        mood = "refuses"

        async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
            if self.mood == "refuses":
                raise LedgerUnavailable("the object store is away")
            if self.mood == "hangs":
                await asyncio.Event().wait()
            await super().save_snapshot(name, partition, value)
            saved.set()

    saved = asyncio.Event()
    ledger = Refusing(partitions=1)
    async with _running(host(ledger, Tally(), snapshot_every=1)):
        for number, ledger.mood in enumerate(("refuses", "refuses", "hangs", "hangs"), start=1):
            await _append(ledger, pause(number))
            await asyncio.wait_for(_until(ledger, "searches", 2 * number), 5)
    assert await ledger.snapshot("state/searcher", 0) is None
    ledger.mood = "takes"
    async with _running(host(ledger, Tally(), snapshot_every=1)):
        await _append(ledger, pause(5))
        await _until(ledger, "searches", 10)
        await asyncio.wait_for(saved.wait(), 5)


async def test_two_hosts_on_one_partition_have_the_effect_of_one() -> None:
    """A second writer is noticed, both go on, and readers see each decision once."""
    ledger = MemoryLedger(partitions=1)
    async with _running(host(ledger, Tally()), host(ledger, Tally())):
        for number in range(1, 11):
            await _append(ledger, pause(number))
            await _until(ledger, "searches", 2 * number)
    verdict = await audit(ledger, Tally())

    assert verdict.same
    assert (verdict.facts, verdict.decisions, verdict.pending) == (10, 20, 0)


async def test_what_cannot_be_folded_is_rejected() -> None:
    """A poisoned key and a message that is no event are so by decisions; others are decided."""
    ledger = MemoryLedger(partitions=1)
    await ledger.append([Draft("experiments", "x", b"{")])
    await _append(ledger, kill(1, "a"), pause(2, "a"), pause(1, "b"))
    async with _running(host(ledger, Tally())):
        decided = await _until(ledger, "searches", 4)

    rejected = [e for e in decided if isinstance(e.data, FactRejected)]
    assert sorted(e.key for e in decided if e not in rejected) == ["b", "b"]
    assert sorted(e.key for e in rejected) == ["a", "x"]
    reasons = [e.data.reason for e in rejected if isinstance(e.data, FactRejected)]
    assert min(reasons) == "ValueError: cannot fold a kill"
    assert max(reasons).startswith("not an event")


async def test_the_audit_finds_an_altered_decision() -> None:
    """A decision whose data was altered is named, with what is decided today."""
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, pause(1), pause(2))
    async with _running(host(ledger, Tally())):
        decided = await _until(ledger, "searches", 4)
    forged = MemoryLedger(partitions=1)
    await _append(forged, pause(1), pause(2))
    for event in decided:
        value = encode(event)
        if event is decided[3]:
            value = value.replace(b'"reason":"2"', b'"reason":"3"')
        await forged.append([Draft(event.topic, event.key, value)])

    assert (await audit(ledger, Tally())).same
    verdict = await audit(forged, Tally())
    assert [(d.key, d.position, d.index) for d in verdict.differences] == [("a", 1, 1)]
    difference = verdict.differences[0]
    assert difference.recorded is not None
    assert difference.decided is not None
    assert (difference.recorded["data"]["reason"], difference.decided["data"]["reason"]) == (
        "3",
        "2",
    )


async def test_the_audit_counts_what_is_not_yet_decided() -> None:
    """Facts that no process has folded yet are no difference."""
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, pause(1))
    async with _running(host(ledger, Tally())):
        await _until(ledger, "searches", 2)
    await _append(ledger, pause(2))
    verdict = await audit(ledger, Tally())

    assert (verdict.same, verdict.decisions, verdict.pending) == (True, 2, 2)


async def test_the_audit_of_one_key_passes_over_the_others() -> None:
    """An experiment is audited by itself, whatever lies beside it."""
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, pause(1, "a"), pause(1, "b"), kill(2, "b"))
    async with _running(host(ledger, Tally())):
        await _until(ledger, "searches", 5)

    assert (await audit(ledger, Tally(), key="a")).decisions == 2
    assert (await audit(ledger, Tally(), key="a")).same
    assert (await audit(ledger, Tally(), key="b")).decisions == 3
    assert (await audit(ledger, Tally(), key="b")).same


def _to_loss(data: ExperimentPaused) -> list[Payload]:
    key = data.experiment_id
    return [
        AllocationLost(
            pool="p", allocation_id="a", experiment_id=key, trial_id=f"{key}.0", run=1, reason=""
        )
    ]


LOSSES = Relay("t", "searches", "/rung/x", ExperimentPaused, ("experiments",), _to_loss)


async def _relayed(ledger: MemoryLedger, count: int) -> list[Event]:
    async with _running(relay(ledger, LOSSES)):
        return [
            event
            for event in await _until(ledger, "experiments", count, repeated=True)
            if isinstance(event.data, AllocationLost)
        ]


async def test_relaying_goes_on_where_it_was() -> None:
    """What was relayed before a restart is not relayed again, and carries its origin."""
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, pause(1))
    async with _running(host(ledger, Tally())):
        await _until(ledger, "searches", 2)
        first = await _relayed(ledger, 2)
        await _append(ledger, pause(2))
        await _until(ledger, "searches", 4)
        second = await _relayed(ledger, 4)

    assert [event.origin for event in first] == [f"{ledger.id}/searches/0/a"]
    assert [event.sequence for event in second] == [0, 2 << 20]
    assert len(second) == 2


async def test_a_fact_relayed_twice_has_one_id() -> None:
    """A relay that lost its position repeats itself under the same origin and number."""
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, pause(1))
    async with _running(host(ledger, Tally())):
        await _until(ledger, "searches", 2)
    first = await _relayed(ledger, 2)
    await ledger.commit("t", "searches", 0, 0)
    twice = await _relayed(ledger, 3)

    assert [event.id for event in twice] == [first[0].id] * 2


async def _state(ledger: MemoryLedger, key: str) -> Count | None:
    """Return a key's state as the newest snapshot has it."""
    return (await recover(ledger, Tally(), 0)).state(key)


async def _snapshot_past(ledger: MemoryLedger, facts: int) -> None:
    """Wait until a snapshot holds so many facts."""
    async with asyncio.timeout(10):
        while (await Snapshots(ledger, Tally(), 0).load()).facts < facts:  # noqa: ASYNC110 - saving is silent
            await asyncio.sleep(0.01)


async def test_a_decision_that_cannot_be_read_loses_nothing_of_its_key() -> None:
    """Its key waits for a release that can read it; snapshots keep it as it was."""
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, pause(1, "a"), pause(2, "a"))
    async with _running(host(ledger, Tally(), snapshot_every=1)):
        await _until(ledger, "searches", 4)
        await _snapshot_past(ledger, 2)
    (last,) = await ledger.read("searches", 0, 3, 1)
    newer = last.value.replace(b".v1", b".v9").replace(b'"causeindex":1', b'"causeindex":2')
    await ledger.append([Draft("searches", "a", newer)])
    await _append(ledger, *(pause(number, "b") for number in range(1, 20)))
    for _ in range(2):
        async with _running(host(ledger, Tally(), snapshot_every=1)):
            while await ledger.end("searches", 0) < 43:  # noqa: ASYNC110 - it cannot be decoded
                await asyncio.sleep(0.01)
            await _snapshot_past(ledger, 20)
    image = await Snapshots(ledger, Tally(), 0).load()

    assert list(image.parked) == ["a"]
    assert "newer Rung" in image.parked["a"].reason
    assert image.parked["a"].known is not None
    assert image.parked["a"].known.state == Count(pauses=2, decisions=4)


async def _ask(ledger: MemoryLedger, kind: type[MessageRetryRequested | MessageDropped]) -> None:
    """Ask something of the newest dead letter, as an operator does."""
    letters = [e.data for e in await _events(ledger, "deadletter")]
    letter = next(it for it in reversed(letters) if isinstance(it, MessageRejected))
    data = kind(
        topic=letter.topic,
        partition=letter.partition,
        position=letter.position,
        key=letter.key,
        reader=letter.reader,
    )
    number = len(letters)
    await _append(
        ledger, fact(data, source="/rung/gateway", origin="g", sequence=number, time="t")
    )


async def test_what_is_asked_of_a_relay_that_does_not_run_is_done_when_it_does() -> None:
    """A request is answered once, after a restart as well."""
    ledger = MemoryLedger(partitions=1)
    broken = Relay("intake", "experiments", "/rung/relay", KillRequested, (), _break)
    await _append(ledger, kill(1, "a"))
    async with _running(relay(ledger, broken)):
        await _until(ledger, "deadletter", 1)
    await _ask(ledger, MessageRetryRequested)
    async with _running(relay(ledger, broken)):
        again = await _until(ledger, "deadletter", 3)
    await _ask(ledger, MessageRetryRequested)
    mended = broken._replace(translate=lambda _: [])
    for _ in range(2):
        async with _running(relay(ledger, mended)):
            events = await _until(ledger, "deadletter", 5)

    assert isinstance(again[-1].data, MessageRejected)
    assert isinstance(events[-1].data, MessageTaken)
    assert len(events) == 5


def _break(event: KillRequested) -> list[Payload]:
    raise ValueError(event.experiment_id)


class Noting(MemoryLedger):
    """Notes how many drafts each append has; the append of a chosen number fails."""

    def __init__(self, failing: int = 0) -> None:
        super().__init__(partitions=1)
        self.sizes: list[int] = []
        self.failing = failing

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append, or fail."""
        self.sizes.append(len(drafts))
        if len(self.sizes) == self.failing:
            raise LedgerUnavailable("away")
        return await super().append(drafts)


async def test_decisions_are_appended_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """No append is larger than a piece, however many decisions follow; none is missing."""
    monkeypatch.setattr("rung.runtime.processor.loop.APPEND_MAX", 3)
    ledger = Noting()
    await _append(ledger, *map(pause, range(1, 6)))
    async with _running(host(ledger, Tally())):
        decided = await _until(ledger, "searches", 10)

    assert ledger.sizes == [5, 3, 3, 3, 1]
    causes = [(event.causeposition, event.causeindex) for event in decided]
    assert causes == [(position, index) for position in range(5) for index in range(2)]


async def test_a_crash_between_two_pieces_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start appends what is missing, also of a fact of which one part is on record."""
    monkeypatch.setattr("rung.runtime.processor.loop.APPEND_MAX", 3)
    ledger = Noting(failing=3)
    await _append(ledger, *map(pause, range(1, 6)))
    async with _running(host(ledger, Tally())):
        decided = await _until(ledger, "searches", 10)

    assert ledger.sizes == [5, 3, 3, 3, 3, 1]
    causes = [(event.causeposition, event.causeindex) for event in decided]
    assert causes == [(position, index) for position in range(5) for index in range(2)]
    assert (await audit(ledger, Tally())).same
