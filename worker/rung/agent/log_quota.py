"""Limits how much of a run's log is stored: its beginning and its end are, the middle is dropped.

    head    lines are passed on as they come, until the log has `max_bytes` without the tail
    tail    then the newest lines are held in memory, `tail_bytes` of them, and passed on when the
            run ends, behind a mark that counts the lines that did not fit

A run that prints faster than `RATE_BYTES_S`, beyond a burst, is treated the same way for as long
as it does: its newest lines are held until they fit again. No line is dropped without a mark, and
memory is bounded by the tail.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

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


class LogQuota:
    """The limit of one run's log on one agent."""

    def __init__(self, max_bytes: int) -> None:
        """Begin an empty log.

        Args:
            max_bytes: of the log, lines counted as they are stored.
        """
        self.tail_bytes: Final = min(_TAIL_BYTES_MAX, max_bytes // 4)
        self._left = max_bytes - self.tail_bytes
        self._burst = float(min(BURST_BYTES, max_bytes))
        self._allowed = self._burst
        self._refilled_s: float | None = None
        self._held: deque[tuple[LogLine, int]] = deque()
        self._held_bytes = 0
        self._reason: Literal["quota", "rate"] | None = None
        self._missing: Missing | None = None

    @property
    def holding(self) -> bool:
        """Whether lines are held that may be passed on before the run ends."""
        return self._reason == "rate"

    @property
    def full(self) -> bool:
        """Whether lines were dropped because the log has reached its limit."""
        return self._reason == "quota" and self._missing is not None

    def take(self, line: LogLine, size: int, now_s: float) -> Sequence[LogLine | Missing]:
        """Take the next line; return what is to be stored now, in its order.

        Args:
            line: as it was printed.
            size: of it as it would be stored.
            now_s: the time of a clock that only moves forward.
        """
        self._refill(now_s)
        if self._reason is None:
            if size <= self._left and size <= self._allowed:
                self._spend(size)
                return (line,)
            self._reason = "quota" if size > self._left else "rate"
        self._hold(line, size)
        return self.due(now_s)

    def due(self, now_s: float) -> Sequence[LogLine | Missing]:
        """Return the lines that were held because too many came at once, if they fit now."""
        self._refill(now_s)
        if self._reason != "rate":
            return ()
        if self._held_bytes > self._left:
            self._reason = "quota"
            return ()
        if self._held_bytes > self._allowed:
            return ()
        self._spend(self._held_bytes)
        return self.end()

    def end(self) -> list[LogLine | Missing]:
        """Return what was held, behind a mark if lines are missing before it."""
        found: list[LogLine | Missing] = [] if self._missing is None else [self._missing]
        found += [line for line, _ in self._held]
        self._held.clear()
        self._held_bytes = 0
        self._reason = self._missing = None
        return found

    def _hold(self, line: LogLine, size: int) -> None:
        self._held.append((line, size))
        self._held_bytes += size
        while self._held_bytes > self.tail_bytes:
            first, gone = self._held.popleft()
            self._held_bytes -= gone
            assert self._reason is not None
            before = self._missing or Missing(self._reason, first.rank, first.time_ms, 0, 0)
            self._missing = before._replace(
                reason=self._reason,
                lines=before.lines + 1,
                size_bytes=before.size_bytes + gone,
            )

    def _spend(self, size: int) -> None:
        self._left -= size
        self._allowed -= size

    def _refill(self, now_s: float) -> None:
        since_s = 0.0 if self._refilled_s is None else now_s - self._refilled_s
        self._allowed = min(self._burst, self._allowed + since_s * RATE_BYTES_S)
        self._refilled_s = now_s
