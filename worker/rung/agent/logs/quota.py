"""Log quota: the beginning and the end of a run's log are stored, the middle is dropped.

    head    lines are passed on as they come, until the log has `max_bytes` without the tail
    tail    then the newest lines are held in memory, `tail_bytes` of them, and passed on when the
            run ends, behind a mark that counts the lines that did not fit

A run that prints faster than `RATE_BYTES_S`, beyond a burst, is treated the same way for as long
as it does: its newest lines are held until they fit again. No line is dropped without a mark, and
memory is bounded by the tail.

Lines are handled in blocks, measured as a whole: a run may print much more than is ever stored,
and should neither be slowed down by that nor keep the agent busy.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from rung.core.ipc.protocol import encoder
from rung.events.metric import LogLine

MAX_BYTES: Final = 64 << 20
MIN_BYTES: Final = 4096
RATE_BYTES_S: Final = 4 << 20
BURST_BYTES: Final = 16 << 20
_TAIL_BYTES_MAX: Final = 1 << 20


class Missing(NamedTuple):
    """Lines that are not stored."""

    reason: Literal["quota", "rate"]
    rank: int
    time_ms: int
    """When the first of them was printed."""
    lines: int
    size_bytes: int


class _Block(NamedTuple):
    """Lines that were printed one after the other."""

    lines: Sequence[LogLine]
    size: int


class LogQuota:
    """The limit of one run's log on one agent."""

    def __init__(self, max_bytes: int) -> None:
        """Begin an empty log.

        Args:
            max_bytes: limit of the log, with lines counted as they are stored.
        """
        self.tail_bytes: Final = min(_TAIL_BYTES_MAX, max_bytes // 4)
        self._left = max_bytes - self.tail_bytes
        self._burst = float(min(BURST_BYTES, max_bytes))
        self._allowed = self._burst
        self._refilled_s: float | None = None
        self._held: deque[_Block] = deque()
        """Whole blocks: the first of them may reach beyond the tail until they are passed on."""
        self._held_bytes = 0
        self._reason: Literal["quota", "rate"] | None = None
        self._missing: Missing | None = None

    @property
    def holding(self) -> bool:
        """Whether lines are held that may be passed on before the run ends."""
        return self._reason == "rate"

    @property
    def dropping(self) -> bool:
        """Whether lines that come now are held, and older ones dropped for them."""
        return self._reason is not None

    @property
    def full(self) -> bool:
        """Whether lines were dropped because the log has reached its limit."""
        return self._reason == "quota" and (
            self._missing is not None or self._held_bytes > self.tail_bytes
        )

    def take(self, lines: Sequence[LogLine], now_s: float) -> Sequence[LogLine | Missing]:
        """Take the next lines; return what is to be stored now, in order.

        Memory is bounded by the tail and the lines of one call.

        Args:
            lines: as they were printed.
            now_s: the time of a clock that only moves forward.
        """
        self._refill(now_s)
        passed: Sequence[LogLine] = ()
        size = size_of(lines)
        if self._reason is None:
            count = len(lines)
            room = min(self._left, self._allowed)
            if size > room:
                ends = itertools.accumulate(size_of([line]) for line in lines)
                count = sum(1 for _ in itertools.takewhile(lambda end: end <= room, ends))
            passed, lines = lines[:count], lines[count:]
            self._spend(size_of(passed))
            if not lines:
                return passed
            self._reason = "quota" if size_of(lines[:1]) > self._left else "rate"
            size = size_of(lines)
        self._hold(_Block(lines, size))
        return [*passed, *self.due(now_s)]

    def due(self, now_s: float) -> Sequence[LogLine | Missing]:
        """Return the lines that were held because too many came at once, if they fit now."""
        self._refill(now_s)
        if self._reason != "rate":
            return ()
        held_bytes = min(self._held_bytes, self.tail_bytes)
        if held_bytes > self._left:
            self._reason = "quota"
            return ()
        if held_bytes > self._allowed:
            return ()
        self._trim()
        self._spend(self._held_bytes)
        return self.end()

    def end(self) -> list[LogLine | Missing]:
        """Return what was held, behind a mark if lines are missing before it."""
        self._trim()
        found: list[LogLine | Missing] = [] if self._missing is None else [self._missing]
        for block in self._held:
            found += block.lines
        self._held.clear()
        self._held_bytes = 0
        self._reason = self._missing = None
        return found

    def _hold(self, block: _Block) -> None:
        self._held.append(block)
        self._held_bytes += block.size
        while self._held_bytes - self._held[0].size >= self.tail_bytes:
            self._drop(self._held.popleft())

    def _trim(self) -> None:
        """Drop the lines of the first block that exceed the tail."""
        excess = self._held_bytes - self.tail_bytes
        if excess <= 0:
            return
        block = self._held.popleft()
        count = size = 0
        while size < excess:
            size += size_of(block.lines[count : count + 1])
            count += 1
        self._held.appendleft(_Block(block.lines[count:], block.size - size))
        self._drop(_Block(block.lines[:count], size))

    def _drop(self, block: _Block) -> None:
        self._held_bytes -= block.size
        assert self._reason is not None
        first = block.lines[0]
        before = self._missing or Missing(self._reason, first.rank, first.time_ms, 0, 0)
        self._missing = before._replace(
            reason=self._reason,
            lines=before.lines + len(block.lines),
            size_bytes=before.size_bytes + block.size,
        )

    def _spend(self, size: int) -> None:
        self._left -= size
        self._allowed -= size

    def _refill(self, now_s: float) -> None:
        since_s = 0.0 if self._refilled_s is None else now_s - self._refilled_s
        self._allowed = min(self._burst, self._allowed + since_s * RATE_BYTES_S)
        self._refilled_s = now_s


def size_of(lines: Sequence[LogLine]) -> int:
    """Return how many bytes lines take as they are stored, with a comma behind each."""
    return len(encoder.encode(lines)) - 1 if lines else 0
