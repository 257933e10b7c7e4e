"""Logic levels: a key of a level that a release does not know waits for one that does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from rung.cli.operations.components import PROCESSORS
from rung.events import Event, LedgerError, Payload, changes, decode, fact, topic
from rung.events.deadletter import FactRejected
from rung.events.directory import ADMIN, ChangeRequested
from rung.events.experiment import ExperimentSubmitted
from rung.events.installation import LEVEL, InstallationUpgraded, PoolUpgraded
from rung.events.ledger_import import ImportStarted
from rung.ledger import Draft, MemoryLedger
from rung.ledger.export.import_record import ImportRecord
from rung.runtime import FactWriter, Processor, audit, host
from rung.runtime.levels import InstallationLevel, raise_level
from rung.runtime.metrics.catalog import KEYS_LEFT_ALONE
from rung.runtime.processor.replay import recover
from runtime.tally import Count, Handles, Tally, kill, pause
from support.searcher.scenario import config
from support.searcher.scenario import submitted as search_submitted

Everything = Handles | ExperimentSubmitted


class Release(Tally):
    """A tally that knows logic levels; at level 2 it decides one event on a pause, not two."""

    handles = Everything

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level

    def evolve(self, state: Count, event: Payload) -> None:
        """Count, and take note of the level."""
        if isinstance(event, ExperimentSubmitted):
            state.level = max(state.level, event.level)
        super().evolve(state, event)

    def decide(self, state: Count, fact: Payload) -> list[Payload]:
        """Answer each pause."""
        return super().decide(state, fact)[state.level - 1 :]


class Noting(MemoryLedger):
    """A ledger that says when a snapshot was saved."""

    def __init__(self, partitions: int = 4) -> None:
        super().__init__(partitions=partitions)
        self.saved = asyncio.Event()

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Save it, and say so."""
        await super().save_snapshot(name, partition, value)
        self.saved.set()


def submitted(key: str, level: int) -> Event:
    """Return the fact that a key is of a level."""
    data = ExperimentSubmitted(
        experiment_id=key, config={}, source="", code_digest=None, level=level
    )
    origin = f"gateway/{key}/{level}"
    return fact(data, source="/rung/gateway", origin=origin, sequence=1, time="t")


async def append(ledger: Noting, *events: Event) -> None:
    """Append facts."""
    await ledger.append([Draft.of(e) for e in events])


async def decided(ledger: Noting, name: str = topic.SEARCHES) -> list[Event]:
    """Return what is on a topic."""
    return [decode(record.value) for record in await ledger.read(name, 0, 0, 10_000)]


@contextlib.asynccontextmanager
async def hosted(ledger: Noting, level: int, *, saves: bool = True) -> AsyncIterator[None]:
    """Run a release that knows a level, with a snapshot after each batch, or with none."""
    every = 1 if saves else 10_000
    task = asyncio.create_task(host(ledger, Release(level), snapshot_every=every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def reached(ledger: Noting, *wanted: tuple[str, int], count: int = 0) -> list[Event]:
    """Wait until there are so many decisions, and those on these facts (key and position)."""
    found: list[Event] = []
    async with asyncio.timeout(10):
        async for records in ledger.follow("searches", 0, 0):
            found += [decode(record.value) for record in records]
            if len(found) >= count and set(wanted) <= set(_who(found)):
                break
    return found


async def saved(ledger: Noting, level: int, facts: int) -> None:
    """Wait until a snapshot holds what is known after so many facts."""
    async with asyncio.timeout(10):
        while True:
            ledger.saved.clear()
            if (await recover(ledger, Release(level), 0)).facts >= facts:
                return
            await ledger.saved.wait()


def _who(events: Sequence[Event]) -> list[tuple[str, int | None]]:
    return [(event.key, event.causeposition) for event in events]


async def test_a_key_of_an_unknown_level_is_left_alone() -> None:
    """Other keys go on, nothing is a dead letter, and a newer release takes the key up."""
    ledger = Noting(partitions=1)
    await append(ledger, pause(1), submitted("a", 2), pause(2), pause(1, "b"))
    async with hosted(ledger, 1):
        assert _who(await reached(ledger, count=4)) == [("a", 0), ("a", 0), ("b", 3), ("b", 3)]
        await saved(ledger, 1, 4)
        assert KEYS_LEFT_ALONE.read() == {("searcher", "0"): 1}
    (parked,) = (await recover(ledger, Release(1), 0)).parked.values()
    assert (parked.facts, parked.level) == (1, 2)
    assert await decided(ledger, "deadletter") == []

    async with hosted(ledger, 2):
        assert _who(await reached(ledger, count=5))[4:] == [("a", 2)]
        await append(ledger, pause(3))
        assert _who(await reached(ledger, count=6))[5:] == [("a", 4)]
        assert KEYS_LEFT_ALONE.read() == {("searcher", "0"): 0}
    verdict = await audit(ledger, Release(2))
    assert (verdict.same, verdict.decisions, verdict.pending) == (True, 6, 0)


async def test_a_snapshot_of_a_newer_release_is_no_way_in() -> None:
    """A key whose level is known from the snapshot alone is left alone, and so written down."""
    ledger = Noting(partitions=1)
    await append(ledger, submitted("a", 2), pause(1), pause(1, "b"))
    async with hosted(ledger, 2):
        await reached(ledger, count=3)
        await saved(ledger, 2, 3)
    for number in (2, 3):  # the second start has a snapshot of the older release's own
        async with hosted(ledger, 1):
            await append(ledger, pause(number), pause(number, "b"))
            assert _who(await reached(ledger, count=2 * number + 1))[-1][0] == "b"
            await saved(ledger, 1, 2 * number + 1)

    async with hosted(ledger, 2):
        assert _who(await reached(ledger, count=9))[7:] == [("a", 3), ("a", 5)]
    verdict = await audit(ledger, Release(2))
    assert (verdict.same, verdict.decisions, verdict.pending) == (True, 9, 0)


async def test_decisions_of_the_newer_release_are_found_again() -> None:
    """They came while the older one had the key parked, in the same partition."""
    ledger = Noting(partitions=1)
    await append(ledger, submitted("a", 2), pause(1), pause(1, "b"))
    async with hosted(ledger, 1):
        await reached(ledger, count=2)
        await saved(ledger, 1, 3)
    async with hosted(ledger, 2):
        await reached(ledger, count=3)
        async with hosted(ledger, 1):
            await append(ledger, pause(2), pause(2, "b"))
            await reached(ledger, count=6)
    async with hosted(ledger, 2):
        await append(ledger, pause(3))
        await reached(ledger, ("a", 1), ("a", 3), ("a", 5))
    verdict = await audit(ledger, Release(2))
    assert (verdict.same, verdict.pending) == (True, 0)


async def test_what_was_decided_is_not_decided_twice() -> None:
    """Where the older release meets the key with the newer one's decisions already on record."""
    ledger = Noting(partitions=1)
    await append(ledger, submitted("a", 2), pause(1))
    async with hosted(ledger, 2, saves=False):
        await reached(ledger, count=1)
    async with hosted(ledger, 1):
        await append(ledger, pause(1, "b"))
        await reached(ledger, count=3)
        await saved(ledger, 1, 3)
    async with hosted(ledger, 2):
        await append(ledger, pause(2))
        await reached(ledger, ("a", 3))
    assert _who(await decided(ledger)) == [("a", 1), ("b", 2), ("b", 2), ("a", 3)]


async def test_an_older_release_cannot_audit_it() -> None:
    """It says which key, from where on, and what to do; all before that it audits."""
    ledger = Noting(partitions=1)
    await append(ledger, pause(1), submitted("a", 2), pause(2))
    async with hosted(ledger, 2):
        await reached(ledger, count=3)
    verdict = await audit(ledger, Release(1))
    assert (verdict.same, verdict.differences, verdict.decisions) == (False, [], 2)
    (line,) = verdict.unreadable
    assert line == (
        "experiments/0 position 1: its logic level 2 is newer than those that this release of"
        " searcher knows (up to 1): start a newer release"
    )


async def test_poison_behind_an_unknown_level_is_seen_by_who_knows_it() -> None:
    """The older release reads no further; the newer one rejects the fact, once."""
    ledger = Noting(partitions=1)
    await append(ledger, submitted("a", 2), kill(1), pause(1, "b"))
    async with hosted(ledger, 1):
        await reached(ledger, count=2)
        await saved(ledger, 1, 3)
    assert await decided(ledger, "deadletter") == []
    async with hosted(ledger, 2):
        await append(ledger, pause(2, "b"))
        await reached(ledger, count=5)
    assert [it.key for it in await decided(ledger) if isinstance(it.data, FactRejected)] == ["a"]


@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda it: it.name)
def test_a_state_has_the_level_of_its_key(processor: Processor[Any]) -> None:
    """From the fact on that raises it, whichever that is; and all know this release's level."""
    state = processor.initial("k")
    assert (state.level, processor.level) == (1, LEVEL)
    raised: dict[str, Payload] = {
        topic.EXPERIMENTS: search_submitted(config("single"), level=2),
        topic.POOLS: PoolUpgraded(pool="k", level=2),
        topic.REQUESTS: ChangeRequested(
            request_id="r1", by=ADMIN, at_ms=0, change=changes.RemoveGroup(group_id="g"), level=2
        ),
    }
    processor.evolve(state, raised[processor.facts])
    assert state.level == 2


async def test_an_installation_has_level_1_until_it_is_raised() -> None:
    """Once; the same again changes nothing, and a release that does not know it is refused."""
    ledger = Noting()
    level = InstallationLevel(ledger)
    assert await level.read() == 1
    assert [await raise_level(ledger, number) for number in (1, 2, 2, 4)] == [1, 1, 2, 2]
    assert await level.read() == 4
    with pytest.raises(LedgerError, match=r"logic level 4 is on record.*up to 3: use the newer"):
        await raise_level(ledger, 3)
    assert sum([await ledger.end("imports", number) for number in range(4)]) == 2


async def test_the_level_of_another_ledger_is_its_own() -> None:
    """What came with an import raises nothing here; what is raised here disturbs no import."""
    ledger = Noting()
    writer = FactWriter(ledger, source="/rung/import", origin="import/1")
    await writer.write(InstallationUpgraded(ledger_id="another", level=7, release="9.0.0"))
    assert await InstallationLevel(ledger).read() == 1

    started = ImportStarted(
        ledger_id=ledger.id,
        import_id="c0ffee",
        exported_from="another",
        exported_by="0.1.0",
        experiment=None,
        records=0,
        experiments=0,
        starts={},
    )
    record = ImportRecord(ledger, started, "2026-01-01T00:00:00Z")
    await record.start([], None)
    await raise_level(ledger, 2)
    await record.complete(forwarded=0, lost=0, undeleted=0)
