"""The scheduling policies by name; see `policy.py` for what one is."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rung.events.errors import InvalidConfig, invalid_field
from rung.scheduler.policies.policy import Policy
from rung.scheduler.policies.priority import Priority

POLICIES: Final[dict[str, type[Policy]]] = {
    "priority": Priority,
}
"""By the name that `pool.configured` gives; a name on record is never given to another policy."""


def policy_of(name: str, options: Mapping[str, Any]) -> Policy:
    """Return a policy with its options.

    Raises:
        InvalidConfig: there is no such policy, or it has no such options; with what there is.
    """
    if name not in POLICIES:
        known = ", ".join(POLICIES)
        raise InvalidConfig([("policy", f"there is no policy {name!r}; there is {known}")])
    if not options:
        return POLICIES[name]()
    try:
        return msgspec.convert(options, POLICIES[name])
    except msgspec.ValidationError as error:
        path, text = invalid_field(error)
        raise InvalidConfig([(f"options.{path}" if path else "options", text)]) from error


__all__ = ["POLICIES", "Policy", "policy_of"]
