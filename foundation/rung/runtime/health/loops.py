"""Health of one loop of a process: what it does, where it is in each partition, and since when.

A loop *restarts* after an error; it *calls* the ledger; it *works* on a batch that it was given,
or *waits* for the next one or for something outside. Waiting is healthy. Problems are a call that
does not return, work that does not end, and a follower that gets no batch although its partition
grows.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

_STOPPED: Final = "the ledger has records behind position {position} of {place}, and none arrive"


class FollowedPartition:
    """One partition that a loop follows."""

    def __init__(self, topic: str, partition: int, position: int, now_s: float) -> None:
        self.topic: Final = topic
        self.partition: Final = partition
        self.position = position
        """Of the next record."""
        self.end: int | None = None
        """Of the partition, when it was last read."""
        self.goal: int | None = None
        """Of the partition, when it was first read."""
        self.moved_s = now_s
        self.working = False

    @property
    def place(self) -> str:
        """Return the partition's name for people."""
        return f"{self.topic}/{self.partition}"

    @property
    def lag(self) -> int | None:
        """How many records it is behind; None: not known."""
        return None if self.end is None else max(self.end - self.position, 0)

    @property
    def unready(self) -> str:
        """Why the loop has not caught up with the partition since it began; empty if it has."""
        if self.goal is None:
            return f"not known yet where {self.place} ends"
        behind = self.goal - self.position
        return f"{behind} records behind on {self.place}" if behind > 0 else ""

    def given(self, now_s: float) -> None:
        """Note that the loop was given a batch."""
        self.moved_s, self.working = now_s, True

    def done(self, position: int, now_s: float) -> None:
        """Note that the loop has finished the batch and waits for the next."""
        self.position, self.moved_s, self.working = position, now_s, False

    def ended_at(self, end: int) -> None:
        """Note where the partition ends."""
        self.end = end
        if self.goal is None:
            self.goal = end


class LoopHealth:
    """What one loop does."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], float],
        *,
        follows: bool = True,
        awaited: bool = True,
    ) -> None:
        """Begin with a loop that has done nothing.

        Args:
            name: for people; a partition's number may follow behind a slash.
            clock: in seconds.
            follows: whether a call of the ledger means that it is about to follow a partition.
            awaited: whether readiness requires that it has caught up.
        """
        head, slash, tail = name.rpartition("/")
        self.name: Final = name
        self.base_name: Final = head if slash and tail.isdigit() else name
        """The name without a partition."""
        self.partitions: list[FollowedPartition] = []
        self.saved: dict[tuple[str, int], float] = {}
        """Snapshot and partition → when it was saved, or first read."""
        self._clock = clock
        self._follows = follows
        self._awaited = awaited
        self._calls: dict[int, tuple[str, float]] = {}
        self._last_call = 0
        self._waits: list[str] = []
        self._failure: str | None = None
        self._called = self._followed = False

    def start(self) -> None:
        """Note that the loop starts, for the first time or again."""
        self.partitions.clear()
        self._failure = None
        self._called = self._followed = False

    def failed(self, reason: str) -> None:
        """Note that the loop failed, and will be started again."""
        self._failure = reason

    def follow(self, topic: str, partition: int, position: int) -> FollowedPartition:
        """Note that the loop follows a partition."""
        followed = FollowedPartition(topic, partition, position, self._clock())
        self.partitions.append(followed)
        self._followed = True
        return followed

    def leave(self, followed: FollowedPartition) -> None:
        """Note that the loop does not follow a partition any more."""
        if followed in self.partitions:
            self.partitions.remove(followed)

    def call(self, what: str, *, unbounded: bool = False) -> int:
        """Note a call of the ledger, which may be one of unbounded duration; return its number."""
        self._called = True
        self._last_call += 1
        self._calls[self._last_call] = (what, math.inf if unbounded else self._clock())
        return self._last_call

    def returned(self, number: int) -> None:
        """Note that a call returned."""
        del self._calls[number]

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Note that the loop waits for something outside."""
        self._waits.append(what)
        try:
            yield
        finally:
            self._waits.remove(what)
            now_s = self._clock()
            for followed in self.partitions:
                followed.moved_s = now_s

    def problems(self, patience_s: float) -> list[str]:
        """Return what has been wrong for longer than `patience_s`."""
        before_s = self._clock() - patience_s
        found = [
            f"{what} has not returned for more than {patience_s:.0f} s"
            for what, since_s in self._calls.values()
            if since_s < before_s
        ]
        if not (self._waits or self._failure):
            found += [self._problem_of(it) for it in self.partitions if it.moved_s < before_s]
        return [f"{self.name}: {problem}" for problem in found if problem]

    def _problem_of(self, it: FollowedPartition) -> str:
        if it.working:
            return f"works on {it.place} behind position {it.position}, and does not end"
        if it.lag and not self._calls:
            return _STOPPED.format(position=it.position, place=it.place)
        return ""

    def unready(self) -> list[str]:
        """Return why the loop has not caught up."""
        if self._failure:
            return [f"{self.name}: starts again after: {self._failure}"]
        if self._follows and self._called and not self._followed:
            return [f"{self.name}: folds the ledger"]
        behind = [it.unready for it in self.partitions if it.unready and self._awaited]
        return [f"{self.name}: {reason}" for reason in behind]


CURRENT_LOOP: Final[ContextVar[LoopHealth | None]] = ContextVar("loop", default=None)
"""The loop that runs here."""


@contextlib.contextmanager
def unmonitored() -> Iterator[None]:
    """Follow partitions here without effect on health, only to wait for appends."""
    token = CURRENT_LOOP.set(LoopHealth("unmonitored", time.monotonic, follows=False))
    try:
        yield
    finally:
        CURRENT_LOOP.reset(token)


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Wait here for something outside, for any time, without effect on liveness."""
    loop = CURRENT_LOOP.get()
    if loop is None:
        yield
        return
    with loop.waiting(what):
        yield
