"""Reads what older versions wrote: pure functions from one version of a type to the next.

No type has a second version yet. When one gets it, its entry here maps the old type string to
the new one and to a function from the old data to the new; the old schema stays in
`tests/events/schemas/`.
"""

from collections.abc import Callable
from typing import Any, Final

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: Final[dict[str, tuple[str, Upcaster]]] = {}
"""Old type string → (next type string, pure function from the old data to the new)."""
