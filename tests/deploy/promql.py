"""Which time series and which of their labels a PromQL expression names."""

import re
from typing import Final, NamedTuple

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR: Final = re.compile(r"\b(up|(?:rung|process)_[a-z0-9_]+)\b(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
_GROUPING: Final = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


class Named(NamedTuple):
    """What an expression names."""

    series: frozenset[str]
    matched: tuple[tuple[str, str], ...]
    """Pairs of a series and a label that it is selected by."""
    grouped: frozenset[str]
    """Labels that are grouped or joined by."""


def named(expression: str) -> Named:
    """Read an expression."""
    bare = _STRING.sub('""', expression)
    found = [(match[1], match[2] or "") for match in _SELECTOR.finditer(bare)]
    return Named(
        series=frozenset(name for name, _ in found),
        matched=tuple(
            (name, label) for name, within in found for label in _MATCHER.findall(within)
        ),
        grouped=frozenset(
            label.strip()
            for within in _GROUPING.findall(bare)
            for label in within.split(",")
            if label.strip()
        ),
    )
