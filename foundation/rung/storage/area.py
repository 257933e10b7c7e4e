"""Storage areas: parts of an object store in which checkpoints lie apart from those of others.

An experiment has the area that its workspace had as it was submitted, for ever: its first fact and
the specifications of its runs name it. Its checkpoints are the objects `checkpoints/…` of
`store.area(name)`, which lie below `areas/<name>/` of the store; without an area, those of the
store itself. Everything else, such as code and configurations, lies outside of all areas.
"""

import re
import secrets
from typing import Final

from rung.events.errors import ObjectDamaged, ObjectError
from rung.storage.port import ObjectStore

AREAS: Final = "areas/"
"""Prefix of the names of all objects in areas."""
AREA_LENGTH_MAX: Final = 100
_PART: Final = r"(?!checkpoints(?:/|\Z))[a-z0-9][a-z0-9_-]*"
_AREA: Final = re.compile(rf"{_PART}(?:/{_PART})*")


def is_area(name: str) -> bool:
    """Return whether an area can have this name."""
    return len(name) <= AREA_LENGTH_MAX and _AREA.fullmatch(name) is not None


def area_prefix(name: str) -> str:
    """Return the prefix of the names of an area's objects; empty for the store itself.

    Raises:
        ObjectError: no area can have this name.
    """
    if not name:
        return ""
    if not is_area(name):
        raise ObjectError(
            f"storage area {name[:AREA_LENGTH_MAX]!r}: give parts such as vision or teams/vision,"
            " of lower-case letters, digits, hyphens and underscores, not named `checkpoints`, and"
            f" {AREA_LENGTH_MAX} characters in all"
        )
    return f"{AREAS}{name}/"


def split_area(name: str) -> tuple[str, str]:
    """Return the area of an object, and its name there; the area is empty outside of all areas."""
    area, mark, rest = name.removeprefix(AREAS).partition("/checkpoints/")
    if name.startswith(AREAS) and mark and is_area(area):
        return area, f"checkpoints/{rest}"
    return "", name


def areas_of(store: ObjectStore) -> list[str]:
    """Return the areas that hold checkpoints, sorted."""
    found = {split_area(info.name)[0] for info in store.list(AREAS)}
    return sorted(found - {""})


def try_out(store: ObjectStore) -> None:
    """Write, read and delete an object where checkpoints are to lie.

    Raises:
        ObjectError: it cannot be used for them.
    """
    name, data = f"checkpoints/trial-{secrets.token_hex(8)}", secrets.token_bytes(16)
    store.put_bytes(name, data)
    try:
        if store.read(name) != data:
            raise ObjectDamaged(f"{name} in {store.url}: other bytes are read than were written")
    finally:
        store.delete(name)
