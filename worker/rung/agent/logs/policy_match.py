"""Log policies: looks for their patterns in what a run prints, for a bounded part of the time.

Each policy is looked for until its first match: what follows from it is the same for one line as
for a thousand. A run whose patterns are costly, and which prints much, would take the time of the
other runs on its machine. So looking may take a second, and beyond that `SHARE` of the time; where
that is used up, lines are passed over until it has come again, and the run's log says so once.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rung.config.log_pattern import LogPatterns, PatternRefused, check
from rung.config.sections.log_policy import Policy, policies_of

BURST_S: Final = 1.0
SHARE: Final = 0.05


class PolicyMatch:
    """The policies of one run that have not matched yet."""

    def __init__(
        self, config: dict[str, Any], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Take the policies of an experiment's configuration."""
        self._clock = clock
        self._open = [each for each in policies_of(config) if _usable(each)]
        self._patterns = LogPatterns([each.pattern for each in self._open])
        self._left_s = BURST_S
        self._at_s: float | None = None
        self.passed_over = 0
        """How many lines were not looked at."""

    def matches(self, lines: Sequence[str]) -> Iterator[tuple[Policy, str]]:
        """Yield each policy that matches for the first time, and the line."""
        if not self._open:
            return
        begun = self._clock()
        self._refill(begun)
        for place, line in enumerate(lines):
            if self._left_s <= 0:
                self.passed_over += len(lines) - place
                return
            found = self._patterns.found(line)
            now = self._clock()
            self._left_s -= now - begun
            begun = now
            if found:
                matched = [self._open[index] for index in found]
                self._open = [each for each in self._open if each not in matched]
                self._patterns = LogPatterns([each.pattern for each in self._open])
                for policy in matched:
                    yield policy, line

    def _refill(self, now: float) -> None:
        if self._at_s is not None:
            self._left_s = min(self._left_s + (now - self._at_s) * SHARE, BURST_S)
        self._at_s = now


def _usable(policy: Policy) -> bool:
    """Return whether RE2 takes the pattern; releases that had no policies took any text."""
    try:
        check(policy.pattern)
    except PatternRefused:
        return False
    return True
