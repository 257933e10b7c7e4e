"""Rejected facts: decisions on record, which restarts, releases, retries and drops may cross."""

import asyncio
import io
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from rung.events import Event, Fenced, LedgerUnavailable, Payload, decode, encode, fact
from rung.events.deadletter import FactDropped, FactRejected, FactRetried, KeyResumed
from rung.events.experiment import KillRequested, ResumeRequested
from rung.ledger import Draft, MemoryLedger, Record
from rung.ledger.effective import answers_request
from rung.ledger.export.export import export, import_
from rung.runtime import PartitionFold, audit
from rung.runtime.audit.imports import audit_imports
from rung.runtime.processor.image import Image
from rung.runtime.processor.loop import _Hosted
from rung.runtime.processor.replay import recover, refold, scan_decisions
from rung.runtime.processor.snapshot import _bucket_of
from rung.runtime.service import Decider, serve
from runtime.tally import Count, Tally, kill, pause, resume

_KEYS: Final = ("a", "b", "c")


class Release(Tally):
    """A tally that raises on some types of facts, after it has changed the state."""

    def __init__(self, *poison: type) -> None:
        super().__init__(breaks=False)
        self.poison = poison

    def evolve(self, state: Count, event: Payload) -> None:
        """Count, or break."""
        if isinstance(event, self.poison):
            state.pauses -= 1_000
            raise KeyError(event.TYPE)
        super().evolve(state, event)


ONE: Final = Release(KillRequested)
OTHER: Final = Release(ResumeRequested)
LAST: Final = Release()


class Restart(Struct, frozen=True):
    """A replica is killed and starts again, as a release."""

    replica: int
    release: int


class Advance(Struct, frozen=True):
    """A replica takes some of the facts that it has not folded."""

    replica: int
    facts: int


class Save(Struct, frozen=True):
    """A replica saves a snapshot, as far as there is room; meanwhile it takes some facts."""

    replica: int
    facts: int
    room: int


class Ask(Struct, frozen=True):
    """An operator has a rejection of a key retried or dropped: the newest one, or an older one."""

    key: str
    drop: bool
    older: int


class Write(Struct, frozen=True):
    """A fact of a key is written."""

    key: str
    kind: str


class Shelf(MemoryLedger):
    """Counts what is read; runs out of room for snapshots; something happens at a write of one."""

    reads = 0
    """Objects of snapshots that were read."""
    records = 0
    """Records that were read."""
    room = 1 << 30
    """Writes of snapshots that do not fail."""
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """What to do at the next write of a snapshot."""

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Read some."""
        found = await super().read(topic, partition, position, limit)
        self.records += len(found)
        return found

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Read one."""
        self.reads += 1
        return await super().snapshot(name, partition)

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Save one, or refuse."""
        if self.meanwhile is not None:
            do, self.meanwhile = self.meanwhile, None
            await do()
        self.room -= 1
        if self.room < 0:
            raise LedgerUnavailable("no room")
        await super().save_snapshot(name, partition, value)


class World:
    """A ledger, with replicas of any release on its one partition."""

    def __init__(self) -> None:
        self.ledger = Shelf(partitions=1)
        self.numbers = itertools.count(1)
        self.pauses = dict.fromkeys(_KEYS, 0)
        self.replicas: list[Any] = [None, None]
        self.keys: dict[str, None] = {}

    async def do(self, step: object) -> None:
        """Do one step."""
        match step:
            case Write(key, kind):
                await self.write(key, kind)
            case Ask(key, drop, older):
                await self.ask(key, drop=drop, older=older)
            case Restart(replica, release):
                await self.start(replica, (ONE, OTHER)[release])
            case Advance(replica, facts):
                await self.advance(replica, facts)
            case Save(replica, facts, room):
                if facts:
                    self.ledger.meanwhile = partial(self.advance, replica, facts)
                self.ledger.room = room
                await self.save(replica)
                self.ledger.room, self.ledger.meanwhile = 1 << 30, None
            case _:
                raise AssertionError(step)

    async def write(self, key: str, kind: str) -> None:
        """Append a fact."""
        number = next(self.numbers)
        made = {"pause": pause, "kill": kill, "resume": resume}.get(kind, pause)(number, key)
        self.pauses[key] += kind == "pause"
        self.keys[key] = None
        value = b"{" if kind == "junk" else encode(made)
        await self.ledger.append([Draft("experiments", key, value)])

    async def ask(self, key: str, *, drop: bool = False, older: int = 0) -> int:
        """Ask something of a rejection; return its position, -1 where there is none."""
        found = [each for each in await self.rejections() if each.key == key]
        if len(found) <= older:
            return -1
        event = found[-1 - older]
        assert isinstance(event.data, FactRejected)
        kind = FactDropped if drop else FactRetried
        data = kind(
            topic="experiments",
            key=key,
            reader="searcher",
            partition=0,
            position=event.data.position,
            rejection=event.id,
        )
        number = next(self.numbers)
        made = fact(data, source="/rung/gateway", origin=f"c/{number}", sequence=0, time="t")
        (position,) = await self.ledger.append([Draft.of(made)])
        return position

    async def decisions(self) -> list[Event]:
        """Return the decisions that count."""
        last: dict[str, tuple[int, int]] = {}
        found = []
        for record in await self.ledger.read("searches", 0, 0, 10_000):
            event = decode(record.value)
            assert event.causeposition is not None
            assert event.causeindex is not None
            cause = event.causeposition, event.causeindex
            if cause > last.get(record.key, (-1, -1)):
                last[record.key] = cause
                found.append(event)
        return found

    async def rejections(self) -> list[Event]:
        """Return the rejections that count: not those of keys that stood still already."""
        found: list[Event] = []
        stuck: set[str] = set()
        for event in await self.decisions():
            if isinstance(event.data, KeyResumed):
                stuck.discard(event.key)
            elif isinstance(event.data, FactRejected):
                if event.key not in stuck or answers_request(event):
                    found.append(event)
                stuck.add(event.key)
        return found

    async def start(self, replica: int, release: Release) -> Any:
        """Start a replica."""
        self.replicas[replica] = _Hosted(self.ledger, release, 0, 1 << 30)
        await self.replicas[replica]._start()
        return self.replicas[replica]

    async def advance(self, replica: int, facts: int = 1 << 30) -> None:
        """Fold and decide."""
        it = self.replicas[replica]
        if it is None:
            return
        if records := await self.ledger.read("experiments", 0, it._fold.facts, facts):
            try:
                await it._take(records)
            except Fenced:
                await self.start(replica, it._processor)

    async def save(self, replica: int) -> None:
        """Save a snapshot."""
        it = self.replicas[replica]
        if it is not None and it._fold.settled:
            await it._save()

    async def finish(self, replica: int, release: Release, *, from_snapshot: bool = True) -> Any:
        """Let a release fold and decide everything."""
        it = await self.start(replica, release)
        if not from_snapshot:
            await it._recover(Image())
        while it._fold.facts < await self.ledger.end("experiments", 0):
            await self.advance(replica)
            it = self.replicas[replica]
        return it._fold


def _shown(fold: PartitionFold[Count]) -> dict[str, Any]:
    """Return what is known of the keys that are not left alone or torn."""
    return {key: known for key in _KEYS if (known := fold.known(key)) is not None}


async def _whole(ledger: MemoryLedger, release: Release, *, snapshot: bool) -> dict[str, Any]:
    """Return what a recovery has of each key; nothing is to be decided then."""
    fold = await recover(ledger, release, 0, from_snapshot=snapshot)
    await scan_decisions(ledger, release, fold, 0)
    if fold.contradicted:
        return await _whole(ledger, release, snapshot=False)
    async for _, folded in refold(ledger, release, fold, 0, until=1 << 30):
        assert not folded.new, folded
    return _shown(fold)


async def _agrees(world: World, releases: Sequence[Release]) -> None:
    """Live, recovered and audited states are the same, of each release."""
    found: dict[str, Any] = {}
    end = -1
    while end < (end := await world.ledger.end("searches", 0)):
        for release in releases:  # what one of them rejects is on record then
            await world.finish(0, release, from_snapshot=False)
            await world.finish(0, release)
    for release in releases:
        live = await world.finish(0, release)
        async with world.replicas[0]._whole():
            shown = _shown(live)
        assert await _whole(world.ledger, release, snapshot=True) == shown
        whole = await _whole(world.ledger, release, snapshot=False)
        # That another release took a fact of which nothing was decided only its snapshot says.
        assert whole == {key: known for key, known in shown.items() if key in whole}
        verdict = await audit(world.ledger, release)
        assert (verdict.differences, verdict.pending) == ([], 0)
        assert bool(verdict.unreadable) == (len(whole) < len(world.keys))
        for key, known in shown.items():
            assert found.setdefault(key, known) == known, key


_STEPS = st.one_of(
    st.builds(Write, st.sampled_from(_KEYS), st.sampled_from(["pause", "kill", "resume", "junk"])),
    st.builds(Write, st.sampled_from(_KEYS), st.just("pause")),
    st.builds(Ask, st.sampled_from(_KEYS), st.booleans(), st.sampled_from([0, 0, 0, 1, 2])),
    st.builds(Restart, st.integers(0, 1), st.integers(0, 1)),
    st.builds(Advance, st.integers(0, 1), st.integers(1, 4)),
    st.builds(Save, st.integers(0, 1), st.integers(0, 3), st.sampled_from([0, 1, 2, 9, 9, 9])),
)


@settings(max_examples=300)
@given(st.lists(_STEPS, max_size=40))
@example(
    [
        Write("c", "resume"),
        Restart(0, 1),
        Restart(1, 0),
        Advance(0, 1),
        Write("c", "kill"),
        Advance(1, 2),
    ]
)
def test_whatever_crosses_a_rejection(steps: list[object]) -> None:
    """Restarts, two releases, retries and drops at any moment: all that fold it agree.

    In the end each key goes on, and each fact that no operator dropped was folded once.
    """

    async def check() -> None:
        world = World()
        for step in steps:
            await world.do(step)
        await _agrees(world, (ONE, OTHER))
        fold = await world.finish(0, LAST)
        while stuck := fold.stuck:
            for key in stuck:
                await world.ask(key, drop=True)
            fold = await world.finish(0, LAST)
            assert fold.stuck != stuck
        await _agrees(world, (LAST,))
        for key in _KEYS:
            expected = Count(world.pauses[key], 2 * world.pauses[key])
            assert (fold.state(key) or Count()) == expected, key

    asyncio.run(check())


async def _kinds(world: World) -> list[tuple[str, str, int, int]]:
    """Return key, kind of decision, cause and index of all decisions that count."""
    kinds = {"paused": "paused", "ended": "ended", "rejected": "rejected", "resumed": "resumed"}
    return [
        (it.key, kinds[it.type.split(".")[-2]], it.causeposition or 0, it.causeindex or 0)
        for it in await world.decisions()
    ]


async def test_what_waited_is_decided_in_its_order_when_a_fact_is_retried() -> None:
    """All of it with the retry as its cause, and growing indices; other keys go on meanwhile."""
    world = World()
    for kind in ("pause", "kill", "pause", "resume", "pause"):
        await world.write("a", kind)
    await world.write("b", "pause")
    await world.finish(0, ONE)
    retry = await world.ask("a")
    await world.write("a", "pause")
    await world.finish(0, LAST)

    assert retry == 6
    assert await _kinds(world) == [
        ("a", "paused", 0, 0),
        ("a", "ended", 0, 1),
        ("a", "rejected", 1, 0),
        ("b", "paused", 5, 0),
        ("b", "ended", 5, 1),
        ("a", "paused", 6, 0),
        ("a", "ended", 6, 1),
        ("a", "paused", 6, 2),
        ("a", "ended", 6, 3),
        ("a", "resumed", 6, 4),
        ("a", "paused", 7, 0),
        ("a", "ended", 7, 1),
    ]
    facts = [decode(it.value).id for it in await world.ledger.read("experiments", 0, 0, 9)]
    resumed = [it for it in await world.decisions() if it.causeposition == retry]
    assert [it.cause for it in resumed] == [facts[at] for at in (2, 2, 4, 4, 6)]
    assert len({it.id for it in await world.decisions()}) == 12
    await _agrees(world, (ONE,))


async def test_a_retry_in_vain_is_a_rejection_with_the_retry_as_its_cause() -> None:
    """The key stands still at the next fact that cannot be folded, too; a drop goes on there."""
    world = World()
    for kind in ("kill", "pause", "kill", "pause"):
        await world.write("a", kind)
    await world.finish(0, ONE)
    await world.ask("a")
    await world.finish(0, ONE)
    await world.ask("a", drop=True)
    await world.ask("a", drop=True)  # the second one is about a rejection that is over
    await world.finish(0, ONE)
    await world.ask("a", drop=True)
    fold = await world.finish(0, ONE)

    assert [(kind, cause, index) for _, kind, cause, index in await _kinds(world)] == [
        ("rejected", 0, 0),
        ("rejected", 4, 0),
        ("paused", 5, 0),
        ("ended", 5, 1),
        ("rejected", 5, 2),
        ("paused", 7, 0),
        ("ended", 7, 1),
        ("resumed", 7, 2),
    ]
    found = [it.data.position for it in await world.rejections()]  # type: ignore[union-attr]
    assert found == [0, 0, 2]
    assert fold.state("a") == Count(pauses=2, decisions=4)
    await _agrees(world, (ONE, LAST))


async def test_a_rejection_at_an_older_position_than_another_is_seen() -> None:
    """A later release rejects a fact that lies before one that was rejected long ago."""
    world = World()
    await world.write("c", "resume")
    await world.write("a", "kill")
    await world.finish(0, ONE)
    await world.finish(0, OTHER)

    found = [(it.key, it.data.position) for it in await world.rejections()]  # type: ignore[union-attr]
    assert found == [("a", 1), ("c", 0)]
    for key in ("c", "a"):
        await world.ask(key)
    fold = await world.finish(0, LAST)
    assert fold.stuck == {}


async def test_a_rollback_hides_no_key_that_stands_still() -> None:
    """Rejected by one release, taken by the next after a retry: both agree on what is on record.

    The former cannot fold what the latter decided: it leaves the key alone, which it counts.
    """
    world = World()
    await world.write("a", "pause")
    await world.write("a", "kill")
    await world.finish(0, ONE)
    assert (await world.finish(0, LAST)).stuck.keys() == {"a"}
    assert (await world.finish(0, ONE)).stuck.keys() == {"a"}
    assert len(await world.rejections()) == 1
    await world.ask("a")
    assert (await world.finish(0, LAST)).stuck == {}
    await world.write("a", "pause")
    before = await _kinds(world)
    fold = await world.finish(0, ONE)
    assert (fold.stuck, list(fold.parked)) == ({}, ["a"])
    assert world.replicas[0]._left_alone() == {("searcher", "0"): 1}
    assert await _kinds(world) == before
    fold = await world.finish(0, LAST)
    assert fold.state("a") == Count(pauses=2, decisions=4)
    await _agrees(world, (LAST,))


async def test_a_drop_after_a_fact_was_taken_changes_nothing() -> None:
    """What happened stays as it was: live, in an audit, and when it is folded again."""
    world = World()
    for kind in ("pause", "kill", "pause"):
        await world.write("a", kind)
    await world.finish(0, ONE)
    await world.ask("a")
    await world.finish(0, LAST)
    await world.ask("a", drop=True)
    await world.write("a", "pause")
    fold = await world.finish(0, LAST)

    assert fold.state("a") == Count(pauses=3, decisions=6)
    assert [it for it in await _kinds(world) if it[1] in {"rejected", "resumed"}] == [
        ("a", "rejected", 1, 0),
        ("a", "resumed", 3, 2),
    ]
    await _agrees(world, (LAST,))


async def test_a_plain_restart_appends_nothing_twice() -> None:
    """Whether the key stood still in the newest snapshot, or has gone on since."""
    world = World()
    for kind in ("pause", "kill", "pause"):
        await world.write("a", kind)
    await world.finish(0, ONE)
    await world.save(0)
    await world.ask("a")
    await world.finish(0, LAST)
    for _ in range(5):
        await world.write("a", "pause")
    await world.finish(0, LAST)
    end = await world.ledger.end("searches", 0)
    for release in (LAST, ONE, LAST):
        await world.finish(0, release)
    assert await world.ledger.end("searches", 0) == end == len(await world.decisions())


async def test_keys_that_stand_still_cost_no_reads_of_snapshots() -> None:
    """A hundred of them: all are brought again at once, when the next snapshot is saved."""
    world = World()
    ledger = world.ledger
    events = [pause(1, f"k{number}") for number in range(100)]
    events += [kill(2, f"k{number}") for number in range(100)]
    await ledger.append([Draft.of(event) for event in events])
    await world.start(0, ONE)
    await world.advance(0, 100)
    await world.save(0)
    ledger.reads = 0
    await world.advance(0)
    assert (len(world.replicas[0]._fold.torn), ledger.reads) == (100, 0)
    await world.save(0)
    buckets = {_bucket_of(f"k{number}") for number in range(100)}
    assert ledger.reads == 1 + len(buckets)
    fold = await recover(ledger, ONE, 0)
    assert len(fold.stuck) == 100
    states = [known.state for key in fold.stuck if (known := fold.known(key)) is not None]
    assert states == [Count(pauses=1, decisions=2)] * 100


async def test_one_key_that_stands_still_costs_the_reads_of_its_bucket() -> None:
    """The snapshot of all others is not read again for it; it has the state before the fact."""
    world = World()
    ledger = world.ledger
    await ledger.append([Draft.of(pause(1, f"k{number}")) for number in range(500)])
    await world.start(0, ONE)
    await world.advance(0)
    await world.save(0)
    await ledger.append([Draft.of(kill(2, "k7"))])
    ledger.reads = 0
    await world.advance(0)
    await world.save(0)
    assert ledger.reads == 2
    known = (await recover(ledger, ONE, 0)).known("k7")
    assert known is not None
    assert (known.stuck is not None, known.state) == (True, Count(pauses=1, decisions=2))


async def test_a_save_reads_the_records_of_keys_that_were_torn_alone() -> None:
    """Not what others have on record since the snapshot, however much: three pauses, three kills.

    Before the kills, and behind them, lie a thousand facts of others, and their decisions.
    """
    world = World()
    ledger = world.ledger
    await world.start(0, ONE)
    for number in range(3):
        others = [pause(1, f"k{number}-{other}") for other in range(1_000)]
        own = [pause(1, f"b{number}"), kill(2, f"b{number}")]
        await ledger.append([Draft.of(event) for event in (*others, *own, *others)])
        await world.advance(0)
        ledger.records = 0
        await world.save(0)
        assert ledger.records == 2 + 2 * 3, "two facts, and their decisions twice"
    fold = await recover(ledger, ONE, 0)
    states = [known.state for key in fold.stuck if (known := fold.known(key)) is not None]
    assert states == [Count(pauses=1, decisions=2)] * 3


async def test_a_key_that_is_torn_while_a_snapshot_is_saved_is_read_alone() -> None:
    """From its first fact since the snapshot before: the one that is saved is not there yet."""
    world = World()
    ledger = world.ledger
    await world.start(0, ONE)
    others = [pause(1, f"k{other}") for other in range(1_000)]
    await ledger.append([Draft.of(event) for event in (*others, pause(1, "b"))])
    await world.advance(0)

    async def tear() -> None:
        await ledger.append([Draft.of(kill(2, "b"))])
        await world.advance(0)
        ledger.records = 0

    ledger.meanwhile = tear
    await world.save(0)
    assert ledger.records == 2 + 2 * 3, "two facts, and their decisions twice"
    known = (await recover(ledger, ONE, 0)).known("b")
    assert known is not None
    assert (known.stuck is not None, known.state) == (True, Count(pauses=1, decisions=2))


async def test_keys_that_were_torn_side_by_side_are_read_once() -> None:
    """Twenty whose records lie among each other's: what is read is no more than there is."""
    world = World()
    ledger = world.ledger
    await world.start(0, ONE)
    keys = [f"k{number}" for number in range(20)]
    events = [
        event
        for make, number in ((pause, 1), (kill, 2))
        for event in (make(number, key) for key in keys)
    ]
    await ledger.append([Draft.of(event) for event in events])
    await world.advance(0)
    ledger.records = 0
    await world.save(0)
    assert ledger.records == 40 + 2 * 60
    fold = await recover(ledger, ONE, 0)
    assert {key: known.state for key in keys if (known := fold.known(key)) is not None} == (
        dict.fromkeys(keys, Count(pauses=1, decisions=2))
    )


async def test_a_torn_key_is_brought_from_an_older_snapshot_of_another_replica() -> None:
    """It wrote over the one since which the key's first fact is known: all is read from there."""
    world = World()
    await world.start(1, ONE)
    await world.write("a", "pause")
    await world.advance(1)
    await world.start(0, ONE)
    await world.write("a", "pause")
    await world.advance(0)
    await world.save(0)
    await world.save(1)
    for kind in ("pause", "kill"):
        await world.write("a", kind)
    await world.advance(0)
    await world.save(0)
    known = (await recover(world.ledger, ONE, 0)).known("a")
    assert known is not None
    assert (known.stuck is not None, known.state) == (True, Count(pauses=3, decisions=6))


async def test_a_torn_key_is_brought_where_the_save_before_failed() -> None:
    """Its first fact since the newest snapshot lies before the one that could not be saved."""
    world = World()
    ledger = world.ledger
    await world.start(0, ONE)
    for kind in ("pause", "pause", "kill"):
        await world.write("a", kind)
        await world.advance(0)
        ledger.room = 0 if kind == "pause" else 1 << 30
        await world.save(0)
    known = (await recover(ledger, ONE, 0)).known("a")
    assert known is not None
    assert (known.stuck is not None, known.state) == (True, Count(pauses=2, decisions=4))


async def _decide_all(ledger: MemoryLedger, release: Release) -> None:
    """Decide everything in all partitions."""
    for partition in range(ledger.partitions("experiments")):
        it = _Hosted(ledger, release, partition, 1 << 30)
        await it._start()
        if records := await ledger.read("experiments", partition, it._fold.facts, 1 << 30):
            await it._take(records)


async def _decided(ledger: MemoryLedger) -> list[tuple[Record, Event]]:
    """Return all decisions."""
    return [
        (record, decode(record.value))
        for partition in range(ledger.partitions("searches"))
        for record in await ledger.read("searches", partition, 0, 1 << 30)
    ]


async def _ask_all(ledger: MemoryLedger, kind: type[FactRetried | FactDropped]) -> None:
    """Ask something of the newest rejection of each key."""
    newest = {it.key: it for _, it in await _decided(ledger) if isinstance(it.data, FactRejected)}
    for event in newest.values():
        assert isinstance(event.data, FactRejected)
        request = kind(
            topic="experiments",
            key=event.key,
            reader="searcher",
            partition=event.data.partition,
            position=event.data.position,
            rejection=event.id,
        )
        origin = f"client/{event.id}"
        made = fact(request, source="/rung/gateway", origin=origin, sequence=1, time="t")
        await ledger.append([Draft.of(made)])


async def _rejected(ledger: MemoryLedger) -> dict[str, tuple[str, bytes]]:
    """Return rejections: id → key, and the fact that lies where it says."""
    found = {}
    for record, event in await _decided(ledger):
        if isinstance(event.data, FactRejected):
            assert event.data.partition == record.partition
            place = ("experiments", record.partition, event.data.position)
            (at,) = await ledger.read(*place, 1)
            assert at.key == record.key
            found[event.id] = event.key, at.value
    return found


@pytest.mark.parametrize("key", [None, "e0"])
@pytest.mark.parametrize("partitions", [1, 4, 7])
async def test_what_was_rejected_is_exported_and_imported(
    key: str | None, partitions: int
) -> None:
    """Rejected, retried in vain, dropped: elsewhere all of it is the same, and goes on."""
    ledger = MemoryLedger(partitions=4)
    keys = [f"e{number}" for number in range(6)]
    for it in keys:
        await ledger.append([Draft.of(pause(1, it)), Draft("experiments", it, b"{")])
        await ledger.append([Draft.of(pause(2, it)), Draft.of(kill(3, it))])
    await _decide_all(ledger, ONE)
    for kind in (FactRetried, FactDropped, FactRetried):
        await _ask_all(ledger, kind)
        await _decide_all(ledger, ONE)
    expected = await _rejected(ledger)
    assert len(expected) == 4 * len(keys)
    out = io.BytesIO()
    await export(ledger, out, experiment_id=key)
    again = MemoryLedger(partitions=partitions)
    await import_(again, out.getvalue().splitlines(keepends=True))

    chosen = {it for it in keys if key in {None, it}}
    assert await _rejected(again) == {
        name: found for name, found in expected.items() if found[0] in chosen
    }
    verdict = await audit(again, LAST)
    assert (verdict.same, verdict.pending) == (True, 0), verdict
    assert verdict.decisions == len(await _decided(again))
    assert await audit_imports(again) == []
    await _ask_all(again, FactRetried)
    await _decide_all(again, LAST)
    assert (await audit(again, LAST)).same
    for partition in range(partitions):
        fold = await recover(again, LAST, partition)
        await scan_decisions(again, LAST, fold, partition)
        async for _ in refold(again, LAST, fold, partition, until=1 << 30):
            pass
        assert fold.stuck == {}
        assert all(state == Count(pauses=2, decisions=4) for state in fold.states())


_POISON: Final = {
    "no JSON": b"{",
    "unknown type": encode(pause(1, "p")).replace(b"pause_requested", b"frozen"),
    "wrong version": encode(pause(1, "p")).replace(b"pause_requested.v1", b"pause_requested.v9"),
    "raising code": encode(kill(1, "p")),
}


@pytest.mark.parametrize("poison", _POISON)
async def test_poison_concerns_its_key_alone(poison: str) -> None:
    """Other keys are decided as they come; an operator drops it, and its key goes on."""
    ledger = MemoryLedger(partitions=1)
    await ledger.append([Draft.of(pause(1, "a")), Draft("experiments", "p", _POISON[poison])])
    await ledger.append([Draft.of(it) for it in (pause(2, "p"), pause(2, "a"), pause(1, "b"))])
    task = asyncio.create_task(serve(ledger, (Decider(ONE, 1),)))
    try:
        async with asyncio.timeout(10):
            await _until(ledger, 7)
            ((_, rejection),) = [
                each for each in await _decided(ledger) if isinstance(each[1].data, FactRejected)
            ]
            await _ask_all(ledger, FactDropped)
            await _until(ledger, 10)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert isinstance(rejection.data, FactRejected)
    assert (rejection.key, rejection.data.position) == ("p", 1)
    assert rejection.data.value == _POISON[poison].decode()
    found = [(it.key, it.causeposition) for _, it in await _decided(ledger)]
    assert found[7:] == [("p", 5)] * 3
    assert await ledger.end("deadletter", 0) == 0


async def _until(ledger: MemoryLedger, decisions: int) -> None:
    async for _ in ledger.follow("searches", 0, 0):
        if await ledger.end("searches", 0) >= decisions:
            return
