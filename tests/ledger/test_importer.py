"""Imports that fail, are resumed, are repeated, and meet one another."""

import io
import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.test_export import EXPERIMENTS, causes_hold, dropped, exported, original
from rung.events import LedgerError, LedgerUnavailable, decode, fact, partition_of, topic
from rung.events.deadletter import MessageDropped
from rung.events.experiment import PauseRequested
from rung.events.ledger_import import ImportCompleted, ImportKeysListed, ImportStarted
from rung.events.topic import DECISIONS, FACTS_OF
from rung.ledger import Draft, Ledger, MemoryLedger, Record, SqliteLedger, Transactional
from rung.ledger.export import staging
from rung.ledger.export.export import export, history, import_
from rung.ledger.export.import_record import KeyDigests, check_imported, imports_of
from support.ledger.conformance import draft, read_all
from support.ledger.events import populate, state_fact
from support.small_disk import small_disk

AT: Final = "2026-01-01T00:00:00.000Z"
CONSUMERS: Final = (("scheduler-intake", topic.SEARCHES),)

Fault = Literal["nothing", "beginning", "all", "twice", "twice, told"]
FAULTS: Final[tuple[Fault, ...]] = ("nothing", "beginning", "all", "twice", "twice, told")


class FailingLedger:
    """A ledger without transactions, of which an append fails as one on Kafka may."""

    def __init__(self, seed: int = 0) -> None:
        self.inner = MemoryLedger(partitions=3)
        self.faults: dict[int, Fault] = {}
        self.appends = 0
        self._random = random.Random(seed)  # noqa: S311 - a test's

    @property
    def id(self) -> str:
        """The ledger's own name."""
        return self.inner.id

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        return self.inner.partitions(topic)

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append; where a fault is due, less or more of it, and raise unless it is hidden."""
        fault = self.faults.pop(self.appends, None)
        self.appends += 1
        if fault is None:
            return await self.inner.append(drafts)
        if fault == "beginning":
            parts: dict[tuple[str, int], list[Draft]] = {}
            for draft in drafts:
                place = (draft.topic, partition_of(draft.key, 3))
                parts.setdefault(place, []).append(draft)
            for part in parts.values():
                await self.inner.append(part[: self._random.randint(0, len(part))])
        if fault not in {"beginning", "nothing"}:
            positions = await self.inner.append(drafts)
        if fault.startswith("twice"):
            positions = await self.inner.append(drafts)
        if fault == "twice, told":
            return positions
        raise LedgerUnavailable("injected")

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return some records."""
        return await self.inner.read(topic, partition, position, limit)

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove what lies before a position."""
        await self.inner.trim(topic, partition, position)

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position."""
        return await self.inner.start(topic, partition)

    async def end(self, topic: str, partition: int) -> int:
        """Return the end."""
        return await self.inner.end(topic, partition)

    def follow(self, topic: str, partition: int, position: int) -> AsyncIterator[Sequence[Record]]:
        """Follow a partition."""
        return self.inner.follow(topic, partition, position)

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return where a consumer is."""
        return await self.inner.position(consumer, topic, partition)

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Remember where a consumer is."""
        await self.inner.commit(consumer, topic, partition, position)

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return a snapshot."""
        return await self.inner.snapshot(name, partition)

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Save a snapshot."""
        await self.inner.save_snapshot(name, partition, value)

    async def close(self) -> None:
        """Close it."""
        await self.inner.close()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Append ten records at a time, and list two keys in an event."""
    monkeypatch.setattr("rung.ledger.export.staging._BATCH_RECORDS", 10)
    monkeypatch.setattr("rung.ledger.export.import_record._KEYS_MAX", 2)


async def once(ledger: Ledger) -> dict[tuple[str, str], list[bytes]]:
    """Return what readers take of each key and topic: events in order, repeated ones dropped."""
    found: dict[tuple[str, str], dict[bytes, None]] = {}
    for name in (*DECISIONS, *FACTS_OF, topic.METRICS, topic.LOGS):
        for partition in range(ledger.partitions(name)):
            for record in await read_all(ledger, name, partition):
                found.setdefault((name, record.key), {})[decode(record.value).id.encode()] = None
    return {place: list(events) for place, events in found.items()}


async def into(ledger: Ledger, lines: list[bytes]) -> bool:
    """Import as the command line does; return whether that resumed."""
    return (await import_(ledger, lines, consumers=CONSUMERS, at=AT)).resumed


async def check_complete(ledger: Ledger, expected: Ledger) -> None:
    """Hold that a ledger has all of another's history, and says so."""
    assert await once(ledger) == await once(expected)
    assert await causes_hold_first(ledger) > 0
    await check_imported(ledger)
    (item,) = await imports_of(ledger, into=ledger.id)
    assert item.completed is not None
    digests = KeyDigests()
    for name in FACTS_OF:
        for partition in range(ledger.partitions(name)):
            for record in await read_all(ledger, name, partition):
                digests.add(name, record.key, record.value)
    assert list(item.keys) == digests.keys()
    assert list(dict.fromkeys(await dropped(ledger))) == await dropped(expected)
    for partition in range(ledger.partitions(topic.SEARCHES)):
        end = await ledger.end(topic.SEARCHES, partition)
        assert await ledger.position(*CONSUMERS[0], partition) == end


async def drop_a_fact(ledger: Ledger) -> None:
    """Have the second fact of a partition dropped."""
    partition = partition_of(EXPERIMENTS[0], ledger.partitions(topic.EXPERIMENTS))
    (record,) = await ledger.read(topic.EXPERIMENTS, partition, 1, 1)
    data = MessageDropped(
        topic=topic.EXPERIMENTS,
        partition=partition,
        position=1,
        key=record.key,
        reader="searcher",
    )
    await state_fact(ledger, data, 10_000)


async def causes_hold_first(ledger: Ledger) -> int:
    """Check that decisions point at the first copies of their facts; return how many there are."""
    first: dict[tuple[str, int, str], int] = {}
    decisions = 0
    async for record in history(ledger):
        event = decode(record.value)
        if record.topic in DECISIONS:
            first.setdefault((record.topic, record.partition, event.id), record.position)
        elif record.topic in FACTS_OF:
            assert event.cause is not None
            place = (FACTS_OF[record.topic], record.partition, event.cause)
            assert first[place] == event.causeposition
            decisions += 1
    return decisions


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_import_that_fails_at_any_append_is_resumed(fault: Fault) -> None:
    """Failed at each of its appends in turn, and run again, it ends complete; not before."""
    source = await original()
    await drop_a_fact(source)
    lines = await exported(source)
    whole = FailingLedger()
    assert not await into(whole, lines)
    await check_complete(whole, source)
    for number in range(whole.appends):
        ledger = FailingLedger(seed=number)
        ledger.faults[number] = fault
        if fault != "twice, told":
            with pytest.raises(LedgerUnavailable, match="injected"):
                await into(ledger, lines)
            began = bool(await imports_of(ledger, into=ledger.id))
            complete = any(item.completed for item in await imports_of(ledger))
            assert not complete or number == whole.appends - 1
            if began and not complete:
                with pytest.raises(
                    LedgerError, match=r"is not complete.*resumes where it stopped"
                ):
                    await check_imported(ledger)
            if not complete:
                assert await into(ledger, lines) == began
        else:
            assert not await into(ledger, lines)
        await check_complete(ledger, source)
        with pytest.raises(LedgerError, match="this export is in this ledger already, complete"):
            await into(ledger, lines)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(FAULTS)), max_size=8),
    st.integers(0, 1 << 16),
)
async def test_an_import_that_fails_again_and_again(
    faults: list[tuple[int, Fault]], seed: int
) -> None:
    """However often it fails, and however, running it again completes it."""
    source = await original()
    lines = await exported(source)
    ledger = FailingLedger(seed)
    for distance, fault in faults:
        ledger.faults[ledger.appends + distance] = fault
        try:
            await into(ledger, lines)
        except LedgerUnavailable:
            continue
        except LedgerError as error:
            assert "in this ledger already" in str(error)  # noqa: PT017 - either is right
        break
    ledger.faults.clear()
    try:
        await into(ledger, lines)
    except LedgerError as error:
        assert "in this ledger already" in str(error)  # noqa: PT017 - either is right
    await check_complete(ledger, source)


async def test_another_import_is_refused_until_one_is_complete() -> None:
    """It names the ledger whose import is not complete, and nothing of it is written."""
    lines = await exported(await original(), "aaaaaaaa")
    other = await exported(await original(), "bbbbbbbb")
    ledger = FailingLedger()
    ledger.faults[3] = "nothing"
    with pytest.raises(LedgerUnavailable):
        await into(ledger, lines)
    before = ledger.appends
    with pytest.raises(LedgerError, match=r"25 records of the ledger .* Nothing was imported"):
        await into(ledger, other)
    assert ledger.appends == before
    assert await into(ledger, lines)
    assert not await into(ledger, other)
    assert [item.started.experiment for item in await imports_of(ledger)] == [
        "aaaaaaaa",
        "bbbbbbbb",
    ]


@pytest.mark.parametrize("number", [2, 8])
async def test_what_others_write_meanwhile(number: int) -> None:
    """Of other keys it does no harm; under a key of the import it is refused, at once or later."""
    source = await original()
    lines = await exported(source)

    class Shared(FailingLedger):
        """A ledger to which a service appends as well."""

        key = "xxxxxxxx"

        async def append(self, drafts: Sequence[Draft]) -> list[int]:
            """Append what a service writes first."""
            if self.appends == number:
                asked = PauseRequested(experiment_id=self.key)
                event = fact(asked, source="/rung/x", origin="x", sequence=1, time=AT)
                await self.inner.append([Draft.of(event)] * 2)
            return await super().append(drafts)

    faults: tuple[Fault | None, ...] = (None, "nothing", "all")
    for fault in faults:
        ledger = Shared()
        if fault is not None:
            ledger.faults[number] = fault
            with pytest.raises(LedgerUnavailable):
                await into(ledger, lines)
        await into(ledger, lines)
        found = await once(ledger)
        assert found.pop((topic.EXPERIMENTS, "xxxxxxxx")) == [b"x#1"]
        assert found == await once(source)

    ledger = Shared()
    ledger.key = "cccccccc"
    with pytest.raises(LedgerError, match=r"something about 'cccccccc' that is not in the export"):
        await into(ledger, lines)
    with pytest.raises(LedgerError, match="import into a new, empty ledger"):
        await into(ledger, lines)


async def test_two_imports_at_once() -> None:
    """Of two that run at the same time the later one goes on; the ledger ends complete."""
    source = await original()
    lines = await exported(source)

    class Contended(FailingLedger):
        """A ledger in which a second import begins while a first one runs."""

        resumed = False

        async def append(self, drafts: Sequence[Draft]) -> list[int]:
            """Run the second import before the tenth append."""
            if self.appends == 10:
                self.appends += 1
                self.resumed = await into(self, lines)
            return await super().append(drafts)

    ledger = Contended()
    with pytest.raises(LedgerError, match=r"another `rung ledger import` .* at the same time"):
        await into(ledger, lines)
    assert ledger.resumed
    await check_complete(ledger, source)


async def test_an_import_is_on_record() -> None:
    """The ledger tells what came, from where, when, and with which decisions of which keys."""
    source = await original()
    out = io.BytesIO()
    await export(source, out)
    ledger = MemoryLedger()
    assert isinstance(ledger, Transactional)
    assert not isinstance(FailingLedger(), Transactional)
    await import_(ledger, out.getvalue().splitlines(), at=AT)
    records = await read_all(ledger, topic.IMPORTS, partition_of(ledger.id, 4))
    events = [decode(record.value) for record in records]
    assert [type(event.data) for event in events] == [
        ImportStarted,
        *[ImportKeysListed] * 6,
        ImportCompleted,
    ]
    started = events[0].data
    assert isinstance(started, ImportStarted)
    assert (started.exported_from, started.records, started.experiments) == (source.id, 135, 5)
    assert events[0].time == AT
    (item,) = await imports_of(ledger)
    assert {(key.topic, key.key, key.records) for key in item.keys} == {
        *((name, key, 5) for key in EXPERIMENTS for name in (topic.SEARCHES, topic.RETIREMENTS)),
        (topic.PLACEMENTS, "default", 5),
    }


async def test_the_record_of_an_import_is_exported_again() -> None:
    """A ledger imported from one that was imported tells of both; and imports once more."""
    ledgers = [await original()]
    for _ in range(3):
        ledger = MemoryLedger(partitions=len(ledgers))
        await import_(ledger, await exported(ledgers[-1]), at=AT)
        assert {item.started.ledger_id for item in await imports_of(ledger)} == {
            ledger.id,
            *(former.id for former in ledgers[1:]),
        }
        assert await causes_hold(ledger) == 55
        ledgers.append(ledger)


async def test_an_unfinished_import_is_not_exported_into_another_ledger() -> None:
    """Its decisions may be missing, so that they would be decided again in the other one."""
    ledger = FailingLedger()
    ledger.faults[6] = "nothing"
    with pytest.raises(LedgerUnavailable):
        await into(ledger, await exported(await original()))
    with pytest.raises(LedgerError, match="while an import into it was not complete"):
        await into(MemoryLedger(), await exported(ledger))


async def test_something_that_uses_the_ledger_is_found_before_and_after_the_start() -> None:
    """Found before, nothing is written; after, the import is on record and can be resumed."""
    lines = await exported(await original())
    for found_at in (1, 2):
        ledger, asked = FailingLedger(), 0

        async def check_idle(found_at: int = found_at) -> None:
            nonlocal asked
            asked += 1
            if asked == found_at:
                raise LedgerError("a searcher runs")

        with pytest.raises(LedgerError, match="a searcher runs"):
            await import_(ledger, lines, at=AT, check_idle=check_idle)
        assert len(await imports_of(ledger)) == found_at - 1
        assert await ledger.end(topic.EXPERIMENTS, 0) == 0
        assert await into(ledger, lines) == (found_at == 2)


async def test_a_ledger_in_use_is_imported_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed import finds its records behind those that were there before."""
    monkeypatch.setattr("rung.ledger.export.staging._BATCH_RECORDS", 3)
    lines = await exported(await original(), "cccccccc")
    for number in range(1, 10):
        ledger = FailingLedger(number)
        await populate(ledger, ["xxxxxxxx", "yyyyyyyy"])
        for part in range(3):
            end = await ledger.end(topic.SEARCHES, part)
            await ledger.commit(*CONSUMERS[0], part, end)
        ledger.faults[ledger.appends + number] = "beginning"
        with pytest.raises(LedgerUnavailable):
            await into(ledger, lines)
        await into(ledger, lines)
        assert await causes_hold(ledger) == 25 + 10


async def test_no_space_for_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said where space is missing, and nothing was written."""
    monkeypatch.setattr(
        "rung.ledger.export.staging._TABLES", f"{staging._TABLES}\nPRAGMA max_page_count = 12;"
    )
    ledger = MemoryLedger()
    with pytest.raises(LedgerUnavailable, match=r"temporary database .* full.*SQLITE_TMPDIR"):
        await into(ledger, await exported(await original()))
    assert await ledger.end(topic.IMPORTS, partition_of(ledger.id, 4)) == 0


@pytest.mark.ledger
async def test_no_space_for_the_ledger(tmp_path: Path) -> None:
    """The disk fills up in the middle: the ledger is as before, and takes the import later."""
    source = await original()
    lines = await exported(source)
    with small_disk() as disk:
        ledger = await SqliteLedger.open(disk / "ledger")
        try:
            await ledger.append([draft("before", name=topic.HEARTBEATS)])
            ballast = disk / "ballast"
            free = os.statvfs(disk)
            ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - 60_000))
            with pytest.raises(LedgerUnavailable, match=r"disk .* is full"):
                await into(ledger, lines)
            assert await ledger.end(topic.METRICS, 0) == 0
            assert await imports_of(ledger) == []
            ballast.unlink()
            await ledger.append([draft("between", name=topic.HEARTBEATS)])
            assert not await into(ledger, lines)
            assert await causes_hold(ledger) == 55
        finally:
            await ledger.close()
