"""What lies in an archive, by the names of its objects alone.

Segments of one partition may overlap, where two wrote at the same time. All of them hold what
the ledger holds, so it does not matter which one is read; verifying compares them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rung.events import topic
from rung.events.errors import LedgerError
from rung.ledger.archive.segment import ROOT, Place, Segment
from rung.ledger.export.format import DECISIONS, FACTS_OF
from rung.storage import ObjectStore

GROUPS: Final = {
    topic.SEALS: (),
    **DECISIONS,
    topic.METRICS: (),
    topic.LOGS: (),
    topic.DEADLETTER: (),
    topic.IMPORTS: (),
}
"""What is archived: facts with the decisions on them, and what has none.

Seals come first, so that what they are about is stored after them, and thus as far as they go.
"""
TOPICS: Final = (*FACTS_OF, *GROUPS)
"""In the order in which to list them: decisions first, for they are stored after their facts."""


class Hole(NamedTuple):
    """Positions that are in no segment."""

    first: int
    last: int


class Shelf:
    """The segments of one ledger in a store, as they were listed."""

    def __init__(self, ledger_id: str, segments: Iterable[Segment], strange: list[str]) -> None:
        self.ledger_id: Final = ledger_id
        self.strange: Final = strange
        """Names of objects among them that are no segments."""
        self._segments: dict[tuple[str, int], list[Segment]] = {}
        self.partitions = 0
        """Of each topic; more than one number would be strange."""
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
        """Yield all partitions of all topics that an archive holds."""
        for name in TOPICS:
            for partition in range(self.partitions):
                yield name, partition

    def without(self, segments: Iterable[Segment]) -> "Shelf":
        """Return what is left when some are not used."""
        unused = set(segments)
        left = [it for found in self._segments.values() for it in found if it not in unused]
        shelf = Shelf(self.ledger_id, left, list(self.strange))
        shelf.partitions = self.partitions
        return shelf


def ledgers_in(store: ObjectStore) -> list[str]:
    """Return the ids of the ledgers that a store holds archives of."""
    found = {info.name.removeprefix(ROOT).split("/")[0] for info in store.list(ROOT)}
    return sorted(found)


def the_ledger_in(store: ObjectStore, ledger_id: str | None) -> str:
    """Return the ledger that is meant: the one named, or the only one there.

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


def list_shelf(store: ObjectStore, ledger_id: str) -> Shelf:
    """Return what a store holds of a ledger: no decision without its fact."""
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
    return Shelf(ledger_id, segments, strange)


def tip_of(segments: Iterable[Segment]) -> Segment | None:
    """Return the segment that reaches furthest; of several, always the same one."""
    return max(segments, key=lambda it: (it.last, it.digest), default=None)


def find_tip(store: ObjectStore, place: Place) -> Segment | None:
    """Return where an archive of a partition ends, by all that lies there."""
    found = (Segment.of(info.name) for info in store.list(place.prefix))
    return tip_of(it for it in found if it is not None)


def find_all(store: ObjectStore, place: Place) -> list[Segment]:
    """Return all segments of a partition, by their first positions."""
    found = (Segment.of(info.name) for info in store.list(place.prefix))
    return sorted(it for it in found if it is not None)


def find_later(store: ObjectStore, place: Place, tip: Segment | None) -> Segment | None:
    """Return where it ends, if others went on from what was known as its end."""
    while True:
        first = 0 if tip is None else tip.last + 1
        names = (info.name for info in store.list(f"{place.prefix}{first:016}-"))
        later = tip_of(it for it in map(Segment.of, names) if it is not None)
        if later is None:
            return tip
        tip = later


def pieces(segments: Sequence[Segment]) -> list[tuple[int, Segment]]:
    """Return from which position on to read which segment, such that the fewest are read.

    Args:
        segments: by their first positions.
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
    """Return the positions between 0 and the end of all that none of them holds."""
    found: list[Hole] = []
    end = 0
    for position, segment in pieces(segments):
        if position > end:
            found.append(Hole(end, position - 1))
        end = segment.last + 1
    return found
