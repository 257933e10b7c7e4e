"""Patterns of log lines: regular expressions of RE2, whose time grows with the line alone.

Lines are what scripts print, so a pattern that backtracks would let one line hold up an agent for
hours. RE2 does not backtrack; it is also the syntax of Determined's log policies. It has no
back-references and no look-around. What is left to bound is the size of a pattern
(`SIZE_BYTES_MAX`) and how much of a line is looked at (`CHARACTERS_MAX`).
"""

from collections.abc import Sequence
from typing import Any, Final

import re2

from rung.events.errors import RungError

CHARACTERS_MAX: Final = 4096
"""How much of a line is looked at: its beginning."""
SIZE_BYTES_MAX: Final = 16 << 10
"""Of a pattern as RE2 compiles it; `.{0,100}` takes a good part of it."""
_CACHE_BYTES: Final = 1 << 20
"""What RE2 may use to match faster."""


class PatternRefused(RungError):
    """A pattern that cannot be used; says why."""

    retriable = False


def check(pattern: str) -> None:
    """Check a pattern.

    Raises:
        PatternRefused: it is no regular expression of RE2, or too large.
    """
    try:
        re2.compile(pattern, _options(SIZE_BYTES_MAX))
    except (re2.error, UnicodeEncodeError) as error:
        raise PatternRefused(
            f"is no regular expression of RE2 ({_words(error)}); RE2 has no look-around and no"
            " back-references, and repetitions such as `.{0,900}` are too large for it"
        ) from error


class LogPatterns:
    """Several patterns, looked for at once."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile patterns that were checked."""
        self._set = re2.Set.SearchSet(_options(_CACHE_BYTES))
        for pattern in patterns:
            self._set.Add(pattern)
        if patterns:
            self._set.Compile()
        self._any = bool(patterns)

    def found(self, line: str) -> list[int]:
        """Return the indices of the patterns that match a part of the line, in their order."""
        if not self._any:
            return []
        text = line[:CHARACTERS_MAX]
        return sorted(self._set.Match(text.encode("utf-8", "replace")) or ())


def _options(max_mem: int) -> Any:
    options = re2.Options()
    options.max_mem = max_mem
    options.log_errors = False
    return options


def _words(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
