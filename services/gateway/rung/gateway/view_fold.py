"""One partition of a read model: how its facts and the decisions on them merge.

Theory of operation. Facts and decisions lie on different topics. The caller reads facts first and
then, of each topic of decisions, at least those that were there when the facts were appended. A
decision is held back until the fact that caused it is folded; one that is older than the next fact
is folded before it. So every record is folded after all that its writer had seen, and what is
folded in another order than elsewhere was written independently; the views do not depend on that.

At the door, once for all views, repeated records are dropped: a fact whose origin's sequence was
already seen for its key, and a decision whose cause is not later than the last one of its key.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct, field

from rung.events import Event, UndecodableEvent, decode
from rung.gateway.view import View
from rung.ledger import Record
from rung.runtime import Rejected

S = TypeVar("S")


class Keyed(Struct, Generic[S]):
    """What is known of one key.

    Attributes:
        marks: origin → the highest sequence folded.
        causes: topic of decisions → position and index of the last cause folded.
        starts: topic → where this key's records begin, at the earliest.
    """

    state: S
    starts: dict[str, int]
    marks: dict[str, int] = field(default_factory=dict[str, int])
    causes: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


class Image(Struct, Generic[S]):
    """A partition's fold between two records, as it is saved."""

    version: int
    positions: dict[str, int]
    keys: dict[str, Keyed[S]]


class _Held(NamedTuple):
    record: Record
    event: Event | None
    """None where it could not be read."""
    cause: int
    """Position of its fact; of one that could not be read, that of the one before it."""


class ViewFold(Generic[S]):
    """The fold of one partition; the caller brings the records."""

    def __init__(self, view: View[S], image: Image[S] | None = None) -> None:
        self._view = view
        topics = (view.facts, *view.decisions)
        self.keys: dict[str, Keyed[S]] = image.keys if image else {}
        self.positions = image.positions if image else dict.fromkeys(topics, 0)
        """Topic → the position behind the last record folded."""
        self._held: dict[str, deque[_Held]] = {name: deque() for name in view.decisions}
        self._rejected: list[Rejected] = []

    @property
    def image(self) -> Image[S]:
        """The fold as it is; what is held back is read again by who goes on from it."""
        return Image(self._view.version, self.positions, self.keys)

    @property
    def holds(self) -> bool:
        """Whether decisions are held back."""
        return any(self._held.values())

    def read_up_to(self, topic: str) -> int:
        """Return the position behind the last decision brought, held back or folded."""
        held = self._held[topic]
        return held[-1].record.position + 1 if held else self.positions[topic]

    def last_cause(self, topic: str) -> int:
        """Return the cause of the newest decision held back, -1 if there is none."""
        held = self._held[topic]
        return held[-1].cause if held else -1

    def forget_held(self) -> None:
        """Drop what is held back, to be brought again."""
        for held in self._held.values():
            held.clear()

    def hold(self, records: Sequence[Record]) -> None:
        """Take in decisions, in order; they are folded behind their facts."""
        for record in records:
            event = self._decode(record)
            cause = self.last_cause(record.topic)
            if event is not None and event.causeposition is not None:
                cause = event.causeposition
            self._held[record.topic].append(_Held(record, event, cause))

    def fold(self, facts: Sequence[Record]) -> list[Rejected]:
        """Fold facts with the decisions on them; return what could not be folded."""
        for record in facts:
            self._release(record.position)
            event = self._decode(record)
            self.positions[record.topic] = record.position + 1
            if event is not None:
                self._take(record, event)
        self._release(self.positions[self._view.facts])
        rejected, self._rejected = self._rejected, []
        return rejected

    def fold_orphans(self) -> list[Rejected]:
        """Fold decisions whose fact is not there, as in a ledger that was cut off."""
        self._release(None)
        rejected, self._rejected = self._rejected, []
        return rejected

    def _release(self, before: int | None) -> None:
        for topic, held in self._held.items():
            while held and (before is None or held[0].cause < before):
                record, event, _ = held.popleft()
                self.positions[topic] = record.position + 1
                if event is not None:
                    self._take(record, event)

    def _take(self, record: Record, event: Event) -> None:
        keyed = self.keys.get(record.key)
        if keyed is None:
            starts = {**self.positions, record.topic: record.position}
            keyed = self.keys[record.key] = Keyed(self._view.initial(record.key), starts)
        if not _is_new(keyed, record, event):
            return
        try:
            self._view.evolve(keyed.state, event)
        except Exception as error:  # noqa: BLE001 - whatever a view raises concerns this record alone
            self._rejected.append(Rejected(record, f"{type(error).__name__}: {error}"))

    def _decode(self, record: Record) -> Event | None:
        try:
            return decode(record.value)
        except UndecodableEvent as error:
            self._rejected.append(Rejected(record, str(error)))
            return None


def _is_new(keyed: Keyed[Any], record: Record, event: Event) -> bool:
    if event.causeposition is not None:
        cause = event.causeposition, event.causeindex or 0
        if cause <= keyed.causes.get(record.topic, (-1, -1)):
            return False
        keyed.causes[record.topic] = cause
    elif event.origin is not None and event.sequence is not None:
        if event.sequence <= keyed.marks.get(event.origin, -1):
            return False
        keyed.marks[event.origin] = event.sequence
    return True
