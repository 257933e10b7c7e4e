"""Throughput of an experiment: how long its runs take to start, to train and to leave.

Sums over its reports, of which older ones count less: of two reports, one twice as long after the
first weighs four times as much. So a search that becomes slower is soon estimated so, whether it
takes minutes or weeks.
"""

from datetime import datetime
from typing import Final

from msgspec import Struct, field

_RECENCY: Final = 2.0
"""A report's weight grows with this power of the time since the first one."""
_DISPATCH_MAX_S: Final = 1.0
"""What takes longer from an exit to the next start is a wait for slots that others had."""
_WEIGHT_MIN: Final = 1e-9
_SPREAD: Final = 0.05
"""Runs of lengths that differ less do not show what a unit takes."""
_START_MOST: Final = 0.9
"""No more of the time to a report is taken to be the start."""


class Timing(Struct, array_like=True, gc=False):
    """Times of a trial, in Unix seconds (0: not yet), and what it trained between reports.

    Attributes:
        requested: when its newest run was.
        started: when that run was.
        reported: when that run reported last.
        seconds: between the reports of each run, all runs together.
        units: trained in these seconds.
        reports: which ended such an interval.
    """

    requested: float = 0.0
    started: float = 0.0
    reported: float = 0.0
    seconds: float = 0.0
    units: float = 0.0
    reports: int = 0

    def request(self, at: float) -> None:
        """Note that a run was requested."""
        self.requested, self.started, self.reported = at, 0.0, 0.0


class Mean(Struct, array_like=True, gc=False):
    """A weighted mean in the making."""

    total: float = 0.0
    weight: float = 0.0

    @property
    def value(self) -> float | None:
        """The mean, None of nothing."""
        return self.total / self.weight if self.weight > _WEIGHT_MIN else None

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a value."""
        self.total += value * weight
        self.weight += weight

    def fade(self, factor: float) -> None:
        """Let what was added so far count less."""
        self.total *= factor
        self.weight *= factor


class Throughput(Struct):
    """What is known of an experiment's runs.

    Attributes:
        first: Unix time of its first start or report.
        newest: of its newest one.
        unit_s: seconds a unit, between two reports of one run.
        first_s: from a start to the first report.
        first_units: trained until then.
        first_squared: the square of these units.
        first_product: these units times those seconds.
        exit_s: from the last report to the exit.
        run_s: from a start to the exit.
        dispatch_s: from an exit to the next start.
        exited: Unix time of the newest exit.
    """

    first: float = 0.0
    newest: float = 0.0
    unit_s: Mean = field(default_factory=Mean)
    first_s: Mean = field(default_factory=Mean)
    first_units: Mean = field(default_factory=Mean)
    first_squared: Mean = field(default_factory=Mean)
    first_product: Mean = field(default_factory=Mean)
    exit_s: Mean = field(default_factory=Mean)
    run_s: Mean = field(default_factory=Mean)
    dispatch_s: Mean = field(default_factory=Mean)
    exited: float = 0.0

    def started(self, timing: Timing, at: float) -> None:
        """Add the start of a run."""
        self._fade(at)
        timing.started = at
        waited = at - max(timing.requested, self.exited)
        if timing.requested and 0.0 <= waited <= _DISPATCH_MAX_S:
            self.dispatch_s.add(waited)

    def reported(self, timing: Timing, at: float, units: float) -> None:
        """Add a report that comes so many units after the run's start or its last report."""
        if not timing.started or units <= 0:
            return
        self._fade(at)
        since = timing.reported or timing.started
        if at < since:
            return  # clocks differ between machines; an estimate can do without this report
        if timing.reported:
            self.unit_s.add((at - since) / units, units)
            timing.seconds += at - since
            timing.units += units
            timing.reports += 1
        else:
            self.first_s.add(at - since)
            self.first_units.add(units)
            self.first_squared.add(units * units)
            self.first_product.add(units * (at - since))
        timing.reported = at

    def ended(self, timing: Timing, at: float) -> None:
        """Add the end of a run."""
        self._fade(at)
        self.exited = max(self.exited, at)
        if not timing.started or at < timing.started:
            return
        self.run_s.add(at - timing.started)
        if timing.reported:
            self.exit_s.add(max(at - timing.reported, 0.0))

    def parts(self, start_s: float | None = None) -> tuple[float, float] | None:
        """Return how long a run takes to start, and how long a unit takes; None if unknown.

        Where each run reported once, runs of different lengths tell these apart.

        Args:
            start_s: how long runs are taken to start where reports do not tell.
        """
        seconds, units = self.first_s.value, self.first_units.value
        unit_s = self.unit_s.value
        if seconds is None or not units:
            return None if unit_s is None else (0.0, unit_s)
        if unit_s is None:
            unit_s = self._slope(seconds, units)
        if unit_s is None:
            known = 0.0 if start_s is None else min(start_s, _START_MOST * seconds)
            unit_s = (seconds - known) / units
        return max(seconds - units * unit_s, 0.0), unit_s

    def _slope(self, seconds: float, units: float) -> float | None:
        """Return the seconds a unit by which longer runs report later, by least squares."""
        squared, product = self.first_squared.value, self.first_product.value
        assert squared is not None, self
        assert product is not None, self
        spread = squared - units * units
        if spread <= _SPREAD * units * units:
            return None
        slope = (product - units * seconds) / spread
        return slope if 0.0 < slope < seconds / units else seconds / units

    def seconds_to_leave(self) -> float:
        """Return how long a slot is held after a run's last report, until another run starts."""
        return (self.exit_s.value or 0.0) + (self.dispatch_s.value or 0.0)

    def _fade(self, at: float) -> None:
        """Let earlier reports count less at a time, if it is later."""
        if not self.first:
            self.first = self.newest = at
            return
        before, now = self.newest - self.first, at - self.first
        if now <= before:
            return
        self.newest = at
        if before > 0:
            factor = (before / now) ** _RECENCY
            for mean in (
                self.unit_s,
                self.first_s,
                self.first_units,
                self.first_squared,
                self.first_product,
                self.exit_s,
                self.run_s,
                self.dispatch_s,
            ):
                mean.fade(factor)


def seconds_of(time: str) -> float | None:
    """Return a time of an envelope in Unix seconds, None if it is none."""
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None
