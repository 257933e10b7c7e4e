"""Index of an archive: its location, and its segments, by the names of its objects alone.

Segments of one partition overlap where two processes wrote at the same time. All of them hold the
ledger's records, so any of them may be read; verifying compares them.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from rung.events import topic
from rung.events.errors import LedgerError, ObjectError
from rung.events.topic import DECISIONS, FACTS_OF
from rung.ledger.archive.segment import ROOT, Place, Segment
from rung.storage import ObjectStore, open_store

GROUPS: Final = {
    topic.SEALS: (),
    **DECISIONS,
    topic.DELIVERIES: (),
    topic.METRICS: (),
    topic.LOGS: (),
    topic.DEADLETTER: (),
    topic.IMPORTS: (),
}
"""The archived topics: facts with the decisions on them, and those without decisions.

Seals are stored first, so the records that they seal are archived at least as far.
"""
TOPICS: Final = (*FACTS_OF, *GROUPS)
"""In the order of listing: decisions first, as they are stored after their facts."""


class Location(NamedTuple):
    """The location of an archive: an object store, and a ledger in it."""

    url: str
    """For `rung.storage.open_store`."""
    ledger_id: str | None
    """None: the only one in the store."""

    def open(self) -> ObjectStore:
        """Open the store for reading.

        Raises:
            ObjectError: it does not exist.
        """
        parts = urlsplit(self.url)
        if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
            raise ObjectError(f"archive {self.url!r}: there is no folder {unquote(parts.path)}")
        return open_store(self.url)


def parse_location(text: str) -> Location:
    """Parse an URL such as `file:///srv/archive` or `s3://bucket/prefix#LEDGER`."""
    url, _, ledger_id = text.partition("#")
    return Location(url, ledger_id or None)


class Hole(NamedTuple):
    """Positions in no segment."""

    first: int
    last: int


class Index:
    """The segments of one ledger in a store."""

    def __init__(self, ledger_id: str, segments: Iterable[Segment], strange: list[str]) -> None:
        self.ledger_id: Final = ledger_id
        self.strange: Final = strange
        """Names of other objects among them."""
        self._segments: dict[tuple[str, int], list[Segment]] = {}
        self.partitions = 0
        """Of each topic."""
        for segment in segments:
            place = segment.place
            self.partitions = self.partitions or place.partitions
            if place.partitions != self.partitions or place.partition >= self.partitions:
                strange.append(segment.name)
                continue
            self._segments.setdefault((place.topic, place.partition), []).append(segment)
        for found in self._segments.values():
            found.sort(key=lambda it: (it.first, it.last, it.digest))

    def __len__(self) -> int:
        return sum(map(len, self._segments.values()))

    def of(self, name: str, partition: int) -> Sequence[Segment]:
        """Return the segments of a partition by their first positions."""
        return self._segments.get((name, partition), [])

    def places(self) -> Iterator[tuple[str, int]]:
        """Yield all partitions of all archived topics."""
        for name in TOPICS:
            for partition in range(self.partitions):
                yield name, partition

    def without(self, segments: Iterable[Segment]) -> "Index":
        """Return an index without some segments."""
        unused = set(segments)
        left = [it for found in self._segments.values() for it in found if it not in unused]
        index = Index(self.ledger_id, left, list(self.strange))
        index.partitions = self.partitions
        return index


def ledgers_in(store: ObjectStore) -> list[str]:
    """Return the ids of the archived ledgers in a store."""
    found = {info.name.removeprefix(ROOT).split("/")[0] for info in store.list(ROOT)}
    return sorted(found)


def resolve_ledger(store: ObjectStore, ledger_id: str | None) -> str:
    """Return the id of a ledger in a store: the given one, or the only one.

    Raises:
        LedgerError: there is none, or there are several.
    """
    known = ledgers_in(store)
    if ledger_id is not None:
        if ledger_id not in known:
            raise LedgerError(
                f"{store.url} holds no archive of the ledger {ledger_id!r}; it holds "
                f"{', '.join(known) or 'none'}"
            )
        return ledger_id
    if not known:
        raise LedgerError(f"{store.url} holds no archive of a ledger (nothing below {ROOT})")
    if len(known) > 1:
        raise LedgerError(
            f"{store.url} holds archives of several ledgers: name one, as in "
            f"{store.url}#{known[0]}; there are {', '.join(known)}"
        )
    return known[0]


def read_index(store: ObjectStore, ledger_id: str) -> Index:
    """List the segments of a ledger in a store: no decision without its fact."""
    segments: list[Segment] = []
    strange: list[str] = []
    known = [f"{ROOT}{ledger_id}/{name}/" for name in TOPICS]
    for prefix in known:
        for info in store.list(prefix):
            segment = Segment.of(info.name)
            if segment is None:
                strange.append(info.name)
            else:
                segments.append(segment)
    return Index(ledger_id, segments, strange)


def tip_of(segments: Iterable[Segment]) -> Segment | None:
    """Return the segment with the last position; of several, always the same one."""
    return max(segments, key=lambda it: (it.last, it.digest), default=None)


def find_tip(store: ObjectStore, place: Place) -> Segment | None:
    """Return the last segment of a partition, from the whole list."""
    found = (Segment.of(info.name) for info in store.list(place.prefix))
    return tip_of(it for it in found if it is not None)


def find_all(store: ObjectStore, place: Place) -> list[Segment]:
    """Return all segments of a partition, by their first positions."""
    found = (Segment.of(info.name) for info in store.list(place.prefix))
    return sorted(it for it in found if it is not None)


def find_later(store: ObjectStore, place: Place, tip: Segment | None) -> Segment | None:
    """Return the last segment of a partition, from the one known as its last."""
    while True:
        first = 0 if tip is None else tip.last + 1
        names = (info.name for info in store.list(f"{place.prefix}{first:016}-"))
        later = tip_of(it for it in map(Segment.of, names) if it is not None)
        if later is None:
            return tip
        tip = later


def pieces(segments: Sequence[Segment]) -> list[tuple[int, Segment]]:
    """Return from which position on to read which segment, so that the fewest are read.

    The segments are in the order of their first positions.
    """
    found: list[tuple[int, Segment]] = []
    end = index = 0
    best: Segment | None = None
    while True:
        reached = index
        while index < len(segments) and segments[index].first <= end:
            index += 1
        best = tip_of((*segments[reached:index], *([best] if best else [])))
        if best is not None and best.last >= end:
            found.append((end, best))
            end = best.last + 1
        elif index == len(segments):
            return found
        else:
            end = segments[index].first


def holes(segments: Sequence[Segment]) -> list[Hole]:
    """Return the positions between 0 and the last one that are in none of them."""
    found: list[Hole] = []
    end = 0
    for position, segment in pieces(segments):
        if position > end:
            found.append(Hole(end, position - 1))
        end = segment.last + 1
    return found
