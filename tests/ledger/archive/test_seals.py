"""Whatever is altered in the archive of a sealed ledger is found, by seals and signed ends."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from rung.api import SealReport
from rung.checkpoint_gc.archiver import archive_now
from rung.cli.operations.ledger.verify import verify_archive
from rung.events import LedgerDamaged, topic
from rung.ledger import Draft, MemoryLedger, Record
from rung.ledger.archive import ArchiveSettings, verify
from rung.ledger.archive.index import TOPICS, read_index
from rung.ledger.archive.signed import read_end
from rung.ledger.seals import SealKey
from rung.storage import FolderStore
from support.ledger.events import populate
from support.ledger.sealed import KINDS, altered, example, seal
from support.ledger.tamper import rewrite_all

KEY = SealKey.generate()
SMALL = ArchiveSettings(segment_bytes=3_000)

pytestmark = [pytest.mark.ledger, pytest.mark.usefixtures("no_power_cuts")]


@pytest.fixture
async def ledger() -> MemoryLedger:
    """Give a sealed ledger."""
    ledger = MemoryLedger(partitions=2)
    await populate(ledger, ["aaaaaaaa", "bbbbbbbb"], rounds=8)
    await ledger.append([example("rung.message.rejected.v1")])
    await seal(ledger, KEY, records=6)
    return ledger


@pytest.fixture
async def store(tmp_path: Path, ledger: MemoryLedger) -> FolderStore:
    """Give the archive of it, in several segments."""
    store = FolderStore(tmp_path)
    await archive_now(ledger, store, SMALL, key=KEY)
    return store


async def check(store: FolderStore) -> SealReport:
    """Return what verifying finds."""
    return (await verify_archive(store.url, KEY.trusted, []))[1]


def objects(store: FolderStore) -> dict[str, bytes]:
    """Return all that a store holds."""
    return {info.name: store.read(info.name) for info in store.list("")}


def put(store: FolderStore, wanted: dict[str, bytes]) -> None:
    """Have a store hold these objects."""
    for info in store.list(""):
        if info.name not in wanted:
            store.delete(info.name)
    for name, data in wanted.items():
        store.put_bytes(name, data)


async def test_an_archive_as_it_was_written(store: FolderStore, ledger: MemoryLedger) -> None:
    """Nothing is wrong with it, and all of it was verified; archiving again changes nothing."""
    report = await check(store)
    assert (report.problems, report.notes, report.unsealed) == ([], [], [])
    assert report.records == 2 * 8 * 5 + 8 * 2 + 1
    before = objects(store)
    await archive_now(ledger, store, SMALL, key=KEY)
    assert objects(store) == before


async def test_each_object_that_is_gone(store: FolderStore) -> None:
    """Each segment, each signed end and each heads in turn is removed; each is found."""
    whole = objects(store)
    for name in whole:
        put(store, {other: data for other, data in whole.items() if other != name})
        found = (await check(store)).problems
        assert found or "/ends/" in name, name
    put(store, whole)


async def test_partitions_and_ends_that_are_gone(store: FolderStore, ledger: MemoryLedger) -> None:
    """A whole partition, or its last segments, removed together with its signed end."""
    whole = objects(store)
    for name in TOPICS:
        for partition in range(2):
            segments = read_index(store, ledger.id).of(name, partition)
            end = f"archive/{ledger.id}/ends/{name}/{partition:04}.json"
            assert (read_end(store, ledger.id, name, partition) is None) == (not segments)
            for kept in {0, len(segments) - 1} if segments else ():
                gone = {segment.name for segment in segments[kept:]}
                for without in (gone, gone | {end}):
                    put(store, {it: data for it, data in whole.items() if it not in without})
                    assert (await check(store)).problems, (name, partition, kept)
                put(store, whole)


async def test_each_field_of_each_type(tmp_path: Path) -> None:
    """Every field altered, or removed, with the digests of the segments rewritten to fit."""
    changes: dict[tuple[str, int], bytes] = {}
    ledger = MemoryLedger(partitions=1)
    for kind in KINDS:
        draft = example(kind)
        values = [value for _, value in altered(draft.value)]
        positions = await ledger.append([draft] * len(values))
        changes |= {(draft.topic, at): value for at, value in zip(positions, values, strict=True)}
    await seal(ledger, KEY, records=20)
    store = FolderStore(tmp_path)
    await archive_now(ledger, store, ArchiveSettings(segment_bytes=200_000), key=KEY)

    def change(records: list[Record]) -> list[Record]:
        return [
            replace(record, value=changes.get((record.topic, record.position), record.value))
            for record in records
        ]

    for name in {name for name, _ in changes}:
        rewrite_all(store, read_index(store, ledger.id).of(name, 0), change)
    assert not [it for it in verify(store).problems if "signed" not in it.text]
    found = {
        (problem.topic, position)
        for problem in (await check(store)).problems
        if problem.first is not None and problem.last is not None
        for position in range(problem.first, problem.last + 1)
    }
    assert found == set(changes)


async def test_records_that_are_swapped_repeated_or_removed(
    store: FolderStore, ledger: MemoryLedger
) -> None:
    """Within a segment, with all digests rewritten to fit."""

    def swap(records: list[Record]) -> list[Record]:
        one, other, *rest = records
        return [
            replace(one, key=other.key, value=other.value),
            replace(other, key=one.key, value=one.value),
            *rest,
        ]

    def repeat(records: list[Record]) -> list[Record]:
        one, other, *rest = records
        return [one, replace(other, key=one.key, value=one.value), *rest]

    def remove(records: list[Record]) -> list[Record]:
        return [records[0], *records[2:]]

    whole = objects(store)
    for name in (topic.EXPERIMENTS, topic.METRICS, topic.LOGS, topic.SEALS):
        for changed in (swap, repeat, remove):
            rewrite_all(store, read_index(store, ledger.id).of(name, 0)[:1], changed)
            assert (await check(store)).problems, (name, changed.__name__)
            put(store, whole)


async def test_signed_ends_and_heads_that_are_altered(store: FolderStore) -> None:
    """Each field of a signed end and of the heads."""
    whole = objects(store)
    for name, data in whole.items():
        if name.endswith(("experiments/0000.json", "heads/0000.json")):
            for path, other in altered(data):
                store.put_bytes(name, other)
                assert (await check(store)).problems, (name, path)
            store.put_bytes(name, data)


async def test_archiving_compares_with_what_is_there(
    store: FolderStore, ledger: MemoryLedger
) -> None:
    """A ledger that was altered since it was archived is not archived further."""
    (record, *_) = await ledger.read(topic.EXPERIMENTS, 0, 0, 1)
    stream = ledger._stream(topic.EXPERIMENTS, 0)
    stream.records[0] = replace(record, value=record.value.replace(b"test", b"tset"))
    with pytest.raises(LedgerDamaged, match=r"experiments/0 0 differs .* one of them was altered"):
        await archive_now(ledger, store, SMALL, key=KEY)


async def test_what_was_never_archived_is_a_note(tmp_path: Path) -> None:
    """Records that retention removed before they were archived are named, and no fault."""
    ledger = MemoryLedger(partitions=1)
    metrics = example("rung.metrics.reported.v1")
    await ledger.append([metrics] * 9)
    await seal(ledger, KEY, records=3)
    store = FolderStore(tmp_path)
    stream = ledger._stream(topic.METRICS, 0)
    del stream.records[:3]
    stream.first = 3
    await archive_now(ledger, store, SMALL, key=KEY)
    report = await check(store)
    assert report.problems == []
    assert any("metrics/0" in note for note in report.notes)


async def test_an_archive_without_seals(tmp_path: Path) -> None:
    """An archive of an earlier release can be read; with a key, the missing seals are a fault."""
    ledger = MemoryLedger(partitions=1)
    await ledger.append([Draft(topic.METRICS, "a", msgspec.json.encode({"no": "event"}))])
    store = FolderStore(tmp_path)
    await archive_now(ledger, store, SMALL)
    _, report = await verify_archive(store.url, frozenset(), [])
    assert (report.whole, report.sealed) == (True, False)
    assert not (await check(store)).whole


async def test_an_archive_made_without_the_key(tmp_path: Path, ledger: MemoryLedger) -> None:
    """Where the key is elsewhere, as in a cluster, the signed heads come along all the same."""
    store = FolderStore(tmp_path)
    await archive_now(ledger, store, SMALL)
    _, report = await verify_archive(store.url, KEY.trusted, [])
    assert report.problems == []
    assert report.sealed
