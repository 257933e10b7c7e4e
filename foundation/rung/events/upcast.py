"""Upcasters: pure functions from the data of an older type to those of the next one.

When a type gets a new version, or is replaced by another one, its entry here maps the old type
string to a function that returns the next type string and its data; the old schema stays in
`tests/events/schemas/`.
"""

from collections.abc import Callable
from typing import Any, Final

Data = dict[str, Any]
Upcaster = Callable[[Data], tuple[str, Data]]

UPCASTERS: Final[dict[str, Upcaster]] = {}
"""Old type string → function from the old data to the next type string and its data."""
