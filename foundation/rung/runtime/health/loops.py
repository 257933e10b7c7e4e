"""How one loop of a process does: where it is in each partition, and since when.

A loop *rests* after an error until it is started again; it *calls* the ledger; it *works* on a
batch that it was given, or *waits for* the next one, or for something else that it cannot hurry.
Whoever waits is well. What is not well: a call that does not return, work that does not end, and a
follower that sleeps although its partition grows.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

_STOPPED: Final = "the ledger has records behind position {position} of {place}, and none arrive"


class Strand:
    """One partition that a loop follows."""

    def __init__(self, topic: str, partition: int, position: int, now_s: float) -> None:
        self.topic: Final = topic
        self.partition: Final = partition
        self.position = position
        """Of the next record."""
        self.end: int | None = None
        """Of the partition, when it was last looked at."""
        self.goal: int | None = None
        """Where the partition ended when it was first looked at."""
        self.moved_s = now_s
        self.working = False

    @property
    def place(self) -> str:
        """Return the partition's name for people."""
        return f"{self.topic}/{self.partition}"

    @property
    def lag(self) -> int | None:
        """How many records it is behind, None if nobody knows."""
        return None if self.end is None else max(self.end - self.position, 0)

    @property
    def unready(self) -> str:
        """Why the loop has not caught up with the partition since it began, empty if it has."""
        if self.goal is None:
            return f"not known yet where {self.place} ends"
        behind = self.goal - self.position
        return f"{behind} records behind on {self.place}" if behind > 0 else ""

    def given(self, now_s: float) -> None:
        """Note that the loop was given a batch."""
        self.moved_s, self.working = now_s, True

    def done(self, position: int, now_s: float) -> None:
        """Note that the loop is done with the batch and waits for the next."""
        self.position, self.moved_s, self.working = position, now_s, False

    def ended_at(self, end: int) -> None:
        """Note where the partition ends."""
        self.end = end
        if self.goal is None:
            self.goal = end


class Pulse:
    """The signs of life of one loop."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], float],
        *,
        follows: bool = True,
        awaited: bool = True,
    ) -> None:
        """Begin without signs of life.

        Args:
            name: for people; a partition's number behind a slash is no part of the loop's name.
            clock: in seconds.
            follows: whether a call of the ledger means that it is about to follow a partition.
            awaited: whether others rely on its having caught up.
        """
        head, slash, tail = name.rpartition("/")
        self.name: Final = name
        self.loop: Final = head if slash and tail.isdigit() else name
        """The name without a partition."""
        self.strands: list[Strand] = []
        self.saved: dict[tuple[str, int], float] = {}
        """Snapshot and partition → when it was saved, or first read."""
        self._clock = clock
        self._follows = follows
        self._awaited = awaited
        self._calls: dict[int, tuple[str, float]] = {}
        self._last_call = 0
        self._held: list[str] = []
        self._resting: str | None = None
        self._called = self._followed = False

    def start(self) -> None:
        """Note that the loop begins, for the first time or again."""
        self.strands.clear()
        self._resting = None
        self._called = self._followed = False

    def rest(self, reason: str) -> None:
        """Note that the loop failed, and will be started again."""
        self._resting = reason

    def follow(self, topic: str, partition: int, position: int) -> Strand:
        """Note that the loop follows a partition; the strand is for its news."""
        strand = Strand(topic, partition, position, self._clock())
        self.strands.append(strand)
        self._followed = True
        return strand

    def leave(self, strand: Strand) -> None:
        """Note that the loop does not follow a partition any more."""
        if strand in self.strands:
            self.strands.remove(strand)

    def call(self, what: str, *, patient: bool = False) -> int:
        """Note a call of the ledger; return its number.

        Args:
            what: names it for people.
            patient: it may take as long as it likes.
        """
        self._called = True
        self._last_call += 1
        self._calls[self._last_call] = (what, math.inf if patient else self._clock())
        return self._last_call

    def returned(self, number: int) -> None:
        """Note that a call returned."""
        del self._calls[number]

    @contextlib.contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Note that the loop waits for something that it cannot hurry."""
        self._held.append(what)
        try:
            yield
        finally:
            self._held.remove(what)
            now_s = self._clock()
            for strand in self.strands:
                strand.moved_s = now_s

    def troubles(self, patience_s: float) -> list[str]:
        """Return what is not well, judged by how long it has been so."""
        before_s = self._clock() - patience_s
        found = [
            f"{what} has not returned for more than {patience_s:.0f} s"
            for what, since_s in self._calls.values()
            if since_s < before_s
        ]
        if not (self._held or self._resting):
            found += [self._trouble_of(s) for s in self.strands if s.moved_s < before_s]
        return [f"{self.name}: {trouble}" for trouble in found if trouble]

    def _trouble_of(self, strand: Strand) -> str:
        if strand.working:
            return f"works on {strand.place} behind position {strand.position}, and does not end"
        if strand.lag and not self._calls:
            return _STOPPED.format(position=strand.position, place=strand.place)
        return ""

    def unready(self) -> list[str]:
        """Return why the loop is not where it should be before others rely on it."""
        if self._resting:
            return [f"{self.name}: starts again after: {self._resting}"]
        if self._follows and self._called and not self._followed:
            return [f"{self.name}: folds the ledger"]
        behind = [s.unready for s in self.strands if s.unready and self._awaited]
        return [f"{self.name}: {reason}" for reason in behind]


CURRENT: Final[ContextVar[Pulse | None]] = ContextVar("pulse", default=None)
"""The pulse of the loop that runs here."""


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Follow partitions here without a sign of life: to wait for appends, not to work on them."""
    token = CURRENT.set(Pulse("uncounted", time.monotonic, follows=False))
    try:
        yield
    finally:
        CURRENT.reset(token)


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Wait for something outside that may be away for long: that is no fault of the loop's."""
    pulse = CURRENT.get()
    if pulse is None:
        yield
        return
    with pulse.held(what):
        yield
