"""Throughput of an experiment, estimated from the times of its reports."""

from datetime import datetime
from typing import Final

from msgspec import Struct, field

_MARKS_MAX: Final = 64


class Throughput(Struct):
    """The newest reports: Unix time in seconds, and units trained by then, all trials together."""

    marks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def add(self, time: str, units: float) -> None:
        """Add a report: so many units were trained by a time (RFC 3339)."""
        at = seconds_of(time)
        if at is None or (self.marks and at < self.marks[-1][0]):
            return  # clocks differ between machines; an estimate can do without this report
        self.marks.append((at, units))
        del self.marks[:-_MARKS_MAX]

    def reset(self) -> None:
        """Begin anew: a pause is no training time."""
        self.marks.clear()

    def seconds_for(self, units: float, now: float) -> float | None:
        """Return how long so many more units take from now on, None if that is unknown."""
        if len(self.marks) < 2:
            return None
        (first_at, first), (last_at, last) = self.marks[0], self.marks[-1]
        if last_at <= first_at or last <= first:
            return None
        rate = (last - first) / (last_at - first_at)
        return max(units / rate - max(now - last_at, 0.0), 0.0)


def seconds_of(time: str) -> float | None:
    """Return a time of an envelope in Unix seconds, None if it is none."""
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None
