"""What was done to an archive is found, and named."""

import resource
from pathlib import Path

import pytest

from rung.checkpoint_gc.archiver import archive_now
from rung.cli.operations.components import audit_all
from rung.events import LedgerDamaged, topic
from rung.ledger import MemoryLedger
from rung.ledger.archive import ArchiveLedger, ArchiveSettings, damaged_in, verify
from rung.ledger.archive.segment import Builder, Place
from rung.ledger.export.export import history
from rung.storage import FolderStore
from support.ledger.history import contents, lines_of_metrics, simulated
from support.ledger.tamper import flip, lie, rewrite, rewrite_all, segments_of, swap, worsen

SMALL = ArchiveSettings(segment_bytes=8_000)


@pytest.fixture
async def ledger() -> MemoryLedger:
    """Give the ledger of a simulated search."""
    return await simulated()


@pytest.fixture
async def store(tmp_path: Path, ledger: MemoryLedger) -> FolderStore:
    """Give a store with the archive of it, in many segments."""
    store = FolderStore(tmp_path)
    await archive_now(ledger, store, SMALL)
    return store


def kinds(store: FolderStore) -> list[str]:
    """Return what kinds of problems an archive has."""
    return [problem.kind for problem in verify(store).problems]


def peak_bytes() -> int:
    """Return the most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_a_whole_archive(store: FolderStore, ledger: MemoryLedger) -> None:
    """Nothing is wrong with it, all of it was read, and deciding again finds nothing."""
    report = verify(store)
    assert report.whole
    assert report.ledger == ledger.id
    assert report.segments == len(store.list("archive/"))
    assert report.records == sum(map(len, (await contents(ledger)).values()))
    verdict = await audit_all(await ArchiveLedger.open(store))
    assert verdict.same
    assert verdict == await audit_all(ledger)


@pytest.mark.parametrize("name", [topic.EXPERIMENTS, topic.SEARCHES, topic.METRICS])
async def test_a_flipped_bit(store: FolderStore, ledger: MemoryLedger, name: str) -> None:
    """The segment is named; what does not rest on it is read all the same."""
    segment = segments_of(store, ledger.id, name)[1]
    flip(store, segment, 600)
    report = verify(store)
    (problem,) = report.problems
    assert (problem.kind, problem.object) == ("damaged", segment.name)
    assert str(segment) in problem.text
    assert damaged_in(report) == [segment]
    with pytest.raises(LedgerDamaged, match="is damaged"):
        await contents(await ArchiveLedger.open(store))
    partly = await ArchiveLedger.open(store, without=[segment], partly=True)
    assert not (await audit_all(partly)).differences
    if name != topic.METRICS:
        with pytest.raises(LedgerDamaged, match=f"lacks positions {segment.first} to"):
            await ArchiveLedger.open(store, without=[segment])


async def test_a_dropped_segment(store: FolderStore, ledger: MemoryLedger) -> None:
    """The positions are named, and the segment that followed it."""
    _, gone, after, *_ = segments_of(store, ledger.id, topic.SEARCHES)
    store.delete(gone.name)
    chain, missing = verify(store).problems
    assert (chain.kind, chain.object) == ("chain", after.name)
    assert missing.text == f"positions {gone.first} to {gone.last} of searches/0 are in no segment"
    with pytest.raises(LedgerDamaged, match=f"lacks positions {gone.first} to {gone.last}"):
        await ArchiveLedger.open(store)


async def test_a_dropped_beginning(store: FolderStore, ledger: MemoryLedger) -> None:
    """A history that begins later than it did is not taken for whole, nor for one of a stream."""
    for name in (topic.SEARCHES, topic.METRICS):
        store.delete(segments_of(store, ledger.id, name)[0].name)
    assert sorted(kinds(store)) == ["chain", "chain", "missing", "missing"]


async def test_a_dropped_end_of_the_facts(store: FolderStore, ledger: MemoryLedger) -> None:
    """Decisions tell of facts that should be there."""
    store.delete(segments_of(store, ledger.id, topic.EXPERIMENTS)[-1].name)
    problems = verify(store).problems
    assert {problem.kind for problem in problems} == {"missing"}
    assert "the facts of experiments/0 end at" in problems[0].text


async def test_a_dropped_end_shows_against_an_earlier_report(
    store: FolderStore, ledger: MemoryLedger
) -> None:
    """Nothing in the store tells of an end that is gone; what was written down before does."""
    known = verify(store).ends
    assert verify(store, known=known).whole
    last = segments_of(store, ledger.id, topic.METRICS)[-1]
    store.delete(last.name)
    assert verify(store).whole
    (problem,) = verify(store, known=known).problems
    assert (problem.kind, problem.object) == ("missing", last.name)
    (strange,) = verify(store, known=["archive/elsewhere"]).problems[:1]
    assert strange.kind == "strange"


async def test_swapped_segments(store: FolderStore, ledger: MemoryLedger) -> None:
    """Both are named: neither is what its name says."""
    one, other, *_ = segments_of(store, ledger.id, topic.SEARCHES)
    swap(store, one, other)
    assert damaged_in(verify(store)) == [one, other]


async def test_an_altered_decision(store: FolderStore, ledger: MemoryLedger) -> None:
    """With its own digests made to fit, the chain is broken; and it is decided otherwise."""
    for segment in segments_of(store, ledger.id, topic.SEARCHES)[:-1]:
        written = rewrite(store, segment, worsen)
        if written != segment:
            break
    report = verify(store)
    (problem,) = report.problems
    assert problem.kind == "chain"
    assert "was altered" in problem.text
    verdict = await audit_all(await ArchiveLedger.open(store))
    first, *consequences = verdict.differences
    assert first.recorded is not None
    assert first.recorded["type"] == "rung.run.requested.v1"
    assert {it.process for it in (first, *consequences)} == {"searcher"}


async def test_a_history_rewritten_to_its_end(store: FolderStore, ledger: MemoryLedger) -> None:
    """With all digests made to fit, the chain holds; deciding again names what was altered."""
    known = verify(store).ends
    rewrite_all(store, segments_of(store, ledger.id, topic.SEARCHES), worsen)
    assert verify(store).whole
    verdict = await audit_all(await ArchiveLedger.open(store))
    assert not verdict.same
    difference = verdict.differences[0]
    assert difference.process == "searcher"
    assert difference.recorded is not None
    assert difference.decided is not None
    assert difference.recorded["data"]["spec"]["length"] == (
        difference.decided["data"]["spec"]["length"] + 1
    )
    assert not verify(store, known=known).whole


async def test_two_histories_of_one_partition(store: FolderStore, ledger: MemoryLedger) -> None:
    """An altered segment beside the true one is found by comparing them."""
    for segment in segments_of(store, ledger.id, topic.SEARCHES):
        data = store.read(segment.name)
        written = rewrite(store, segment, worsen)
        store.put_bytes(segment.name, data)
        if written != segment:
            break
    (problem,) = verify(store).problems
    assert problem.kind == "differs"
    assert "differ at position" in problem.text


async def test_what_headers_may_claim(store: FolderStore, ledger: MemoryLedger) -> None:
    """To be the first, to follow a later one, to hold more: each is found."""
    first, second, *_, last = segments_of(store, ledger.id, topic.METRICS)
    lie(store, last, previous=None)
    assert kinds(store) == ["chain"]
    assert "says that it is the first" in verify(store).problems[0].text
    second = lie(store, second, records=7_000)
    assert "damaged" in kinds(store)
    lie(store, first, previous=second.digest)
    assert "which it cannot" in "".join(problem.text for problem in verify(store).problems)


async def test_strange_objects(store: FolderStore, ledger: MemoryLedger) -> None:
    """What lies among the segments and is none, is named; what lies elsewhere is not looked at."""
    store.put_bytes(f"archive/{ledger.id}/logs/readme.txt", b"hello")
    store.put_bytes("code/x", b"")
    (problem,) = verify(store).problems
    assert (problem.kind, problem.object) == ("strange", f"archive/{ledger.id}/logs/readme.txt")


async def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    """An archive of 100,000 records is verified and read in the memory of a few segments."""
    count = 100_000
    store = FolderStore(tmp_path)
    place = Place("long", topic.METRICS, 0, 1)
    previous: str | None = None
    builder = Builder(place, previous, size_bytes=1 << 20)
    for record in lines_of_metrics(count):
        builder.add([record])
        if builder.full or record.position == count - 1:
            segment, data = builder.finish()
            store.put_bytes(segment.name, data)
            builder = Builder(place, previous := segment.digest, size_bytes=1 << 20)
    before = peak_bytes()
    assert verify(store).records == count
    records = 0
    async for _ in history(await ArchiveLedger.open(store)):
        records += 1
    assert records == count
    assert peak_bytes() - before < 24 << 20
