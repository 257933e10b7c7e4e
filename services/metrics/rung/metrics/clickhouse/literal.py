"""Values as SQL literals, for servers that have no query parameters (before 19.14)."""

import re
from collections.abc import Mapping
from typing import Final

from rung.metrics.clickhouse.engine import Parameter

_PLACEHOLDER: Final = re.compile(r"\{(\w+):\w+\}")
_ESCAPES: Final = {0: "\\0", 39: "\\'", 92: "\\\\"}
"""NUL ends a query for the old parser; quote and backslash are special in a text for every one."""


def fill(sql: str, parameters: Mapping[str, Parameter]) -> str:
    """Return the query with each `{name:Type}` replaced by its value.

    Raises:
        KeyError: a placeholder has no value.
    """
    return _PLACEHOLDER.sub(lambda found: literal(parameters[found[1]]), sql)


def literal(value: Parameter) -> str:
    """Return a value as a literal; fractions are refused, for the old parser rounds them."""
    if isinstance(value, str):
        return f"'{value.translate(_ESCAPES)}'"
    assert isinstance(value, int) or value.is_integer(), value
    return repr(value)
