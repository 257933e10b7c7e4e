"""Verification of an archive: each segment, each link of its chains, each position and signed end.

A truncated partition shows by its signed end. A history that was rewritten with all later digests
shows by the archived seals, see `rung.ledger.seals.verify`, or by the `ends` of an earlier report
that was kept elsewhere.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from msgspec import Struct, field

from rung.events.errors import LedgerDamaged
from rung.events.topic import FACTS_OF
from rung.ledger import Record
from rung.ledger.archive.index import Hole, Index, holes, read_index, resolve_ledger, tip_of
from rung.ledger.archive.reader import DECIDED, fetch_segment, read_segment
from rung.ledger.archive.segment import Header, Segment
from rung.ledger.archive.signed import read_end
from rung.ledger.export.format import fact_of
from rung.storage import ObjectStore

Kind = Literal["damaged", "chain", "missing", "differs", "strange"]


class Problem(Struct, frozen=True, kw_only=True):
    """A fault of an archive."""

    kind: Kind
    topic: str
    partition: int
    object: str | None
    """The name of the segment's object, if it is about one."""
    text: str


class Report(Struct, kw_only=True):
    """The result of a verification."""

    ledger: str
    segments: int = 0
    records: int = 0
    size_bytes: int = 0
    """Of the lines, unpacked."""
    ends: list[str] = field(default_factory=list[str])
    """The last segment of each chain. Kept elsewhere, they prove what was archived by then."""
    problems: list[Problem] = field(default_factory=list[Problem])
    notes: list[str] = field(default_factory=list[str])
    """Records that were never archived, of topics without decisions."""
    holes: list[tuple[str, int, int, int]] = field(default_factory=list[tuple[str, int, int, int]])
    """The same: topic, partition, first and last position."""
    signed: dict[str, int] = field(default_factory=dict[str, int])
    """The newest signed end of each partition, by `<topic>/<partition>`."""
    keys: list[str] = field(default_factory=list[str])
    """The public keys that signed."""

    @property
    def whole(self) -> bool:
        """Whether there are no faults."""
        return not self.problems


def verify(
    store: ObjectStore,
    ledger_id: str | None = None,
    *,
    known: Collection[str] = (),
    keys: frozenset[str] = frozenset(),
) -> Report:
    """Read and check a whole archive; blocks.

    Args:
        store: of the archive.
        ledger_id: of the ledger; by default the only one in the store.
        known: `ends` of an earlier report, which must still exist.
        keys: the trusted public keys; all if none are given.

    Raises:
        LedgerError: there is no such archive, or there are several.
        ObjectError: the store cannot be read.
    """
    index = read_index(store, resolve_ledger(store, ledger_id))
    report = Report(ledger=index.ledger_id, segments=len(index), ends=list(_ends(index)))
    report.problems += _gone(index, known)
    report.problems += [
        Problem(kind="strange", topic="", partition=0, object=name, text="is no segment of it")
        for name in index.strange
    ]

    def check(place: tuple[str, int]) -> "_Chain":
        chain = _Chain(store, index, *place)
        chain.check()
        return chain

    with ThreadPoolExecutor(max(store.parallel, 1), "verify") as threads:
        for chain in threads.map(check, index.places()):
            report.records += chain.records
            report.size_bytes += chain.size_bytes
            report.problems += chain.problems
            report.notes += chain.notes
            report.holes += chain.holes
    _check_signed(store, index, keys, report)
    return report


def damaged_in(report: Report) -> list[Segment]:
    """Return the damaged segments of a report."""
    found = [Segment.of(it.object) for it in report.problems if it.kind == "damaged" and it.object]
    return [segment for segment in found if segment is not None]


class _Chain:
    """Checks the segments of one partition."""

    def __init__(self, store: ObjectStore, index: Index, name: str, partition: int) -> None:
        self._store = store
        self._index = index
        self._topic = name
        self._partition = partition
        self._segments = index.of(name, partition)
        self._by_digest = {segment.digest: segment for segment in self._segments}
        self._previous: dict[Segment, str | None] = {}
        self._cause = -1
        self.records = 0
        self.size_bytes = 0
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.holes: list[tuple[str, int, int, int]] = []

    def check(self) -> None:
        furthest: Segment | None = None
        for segment in self._segments:
            header, records = self._read(segment)
            if header is None:
                continue
            self.records += len(records)
            self.size_bytes += header.segment.size_bytes
            self._previous[segment] = header.segment.previous
            self._check_link(segment, header.segment.previous)
            self._note_causes(records)
            if furthest is not None and segment.first <= furthest.last:
                self._compare(furthest, segment, records)
            furthest = tip_of(it for it in (furthest, segment) if it is not None)
        for hole in holes(self._segments):
            self._report_hole(hole)
        self._check_facts()

    def _read(self, segment: Segment) -> tuple[Header | None, Sequence[Record]]:
        try:
            opened = fetch_segment(self._store, segment)
            return opened.header, opened.records()
        except LedgerDamaged as error:
            self._report("damaged", segment, str(error))
            return None, ()

    def _check_link(self, segment: Segment, previous: str | None) -> None:
        earlier = [it for it in self._segments if it.last < segment.first] if not previous else []
        if previous is None and earlier:
            self._report("chain", segment, f"{segment} says that it is the first; it is not")
        elif previous is not None:
            before = self._by_digest.get(previous)
            if before is None:
                self._report(
                    "chain",
                    segment,
                    f"the segment before {segment} is missing or was altered: none has the "
                    f"digest {previous[:12]}",
                )
            elif before.last >= segment.first:
                self._report("chain", segment, f"{segment} follows {before}, which it cannot")

    def _note_causes(self, records: Sequence[Record]) -> None:
        if self._topic in FACTS_OF:
            causes = (fact_of(record.value) for record in records)
            self._cause = max(self._cause, *causes)

    def _compare(self, one: Segment, other: Segment, records: Sequence[Record]) -> None:
        """Compare two segments where they overlap."""
        try:
            known = {record.position: record for record in read_segment(self._store, one)}
        except LedgerDamaged:
            return  # reported already
        for record in records:
            if record.position <= one.last and known.get(record.position) != record:
                self._report(
                    "differs", other, f"{other} and {one} differ at position {record.position}"
                )
                return

    def _report_hole(self, hole: Hole) -> None:
        where = f"positions {hole.first} to {hole.last} of {self._topic}/{self._partition}"
        if self._was_known(hole) and self._topic not in DECIDED:
            self.notes.append(f"{where} were never archived: the ledger no longer had them")
            self.holes.append((self._topic, self._partition, hole.first, hole.last))
        else:
            self._report("missing", None, f"{where} are in no segment")

    def _was_known(self, hole: Hole) -> bool:
        """Return whether the segment behind a hole names the one before it."""
        for segment in self._segments:
            if segment.first == hole.last + 1 and segment in self._previous:
                previous = self._previous[segment]
                if previous is None and hole.first == 0:
                    return True
                before = self._by_digest.get(previous or "")
                if before is not None and before.last + 1 == hole.first:
                    return True
        return False

    def _check_facts(self) -> None:
        """Check that no facts are missing at the end: they are stored before their decisions."""
        facts = FACTS_OF.get(self._topic)
        if facts is None:
            return
        tip = tip_of(self._index.of(facts, self._partition))
        end = tip.last + 1 if tip else 0
        if self._cause >= end:
            self._report(
                "missing",
                None,
                f"the facts of {facts}/{self._partition} end at {end}, but there are decisions "
                f"on facts up to {self._cause}",
            )

    def _report(self, kind: Kind, segment: Segment | None, text: str) -> None:
        self.problems.append(
            Problem(
                kind=kind,
                topic=self._topic,
                partition=self._partition,
                object=segment.name if segment else None,
                text=text,
            )
        )


def _check_signed(store: ObjectStore, index: Index, keys: frozenset[str], report: Report) -> None:
    """Compare the end of each partition with the signed one."""
    signers: set[str] = set()
    for name, partition in index.places():
        try:
            signed = read_end(store, index.ledger_id, name, partition)
        except ValueError as error:
            report.problems.append(_of_end(name, partition, str(error)))
            continue
        if signed is None:
            continue
        tip = tip_of(index.of(name, partition))
        end = tip.last + 1 if tip else 0
        said = (signed.ledger, signed.topic, signed.partition)
        if not signed.authentic or said != (index.ledger_id, name, partition):
            text = f"the signed end of {name}/{partition} was altered: its signature is wrong"
        elif keys and signed.key not in keys:
            text = f"the end of {name}/{partition} was signed by a foreign key, {signed.key}"
        elif end < signed.end:
            text = (
                f"positions {end} to {signed.end - 1} of {name}/{partition} were archived, as its "
                "signed end says, and are in no segment: its end was cut off"
            )
        elif signed.segment not in {it.digest for it in index.of(name, partition)}:
            text = f"the last segment of {name}/{partition} that was signed is not there"
        else:
            signers.add(signed.key)
            report.signed[f"{name}/{partition}"] = signed.end
            continue
        report.problems.append(_of_end(name, partition, text))
    report.keys = sorted(signers)


def _of_end(name: str, partition: int, text: str) -> Problem:
    return Problem(kind="missing", topic=name, partition=partition, object=None, text=text)


def _gone(index: Index, known: Collection[str]) -> Iterator[Problem]:
    for name in known:
        segment = Segment.of(name)
        if segment is None or segment.place.ledger != index.ledger_id:
            text = f"{name!r} was there, it is said, but is no segment of {index.ledger_id}"
            yield Problem(kind="strange", topic="", partition=0, object=name, text=text)
        elif segment not in index.of(segment.place.topic, segment.place.partition):
            yield Problem(
                kind="missing",
                topic=segment.place.topic,
                partition=segment.place.partition,
                object=name,
                text=f"{segment} was there and is missing",
            )


def _ends(index: Index) -> Iterator[str]:
    for name, partition in index.places():
        if tip := tip_of(index.of(name, partition)):
            yield tip.name
