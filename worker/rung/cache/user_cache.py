"""A user's own cache, for scripts that are run by hand: `~/.cache/rung/data`."""

import os
from pathlib import Path
from typing import Final

from rung.cache.cache import Cache, Held
from rung.cache.errors import DataChanged
from rung.cache.log import log
from rung.cache.origin import origin_of
from rung.cache.source import Source

_CHANGES_MAX: Final = 5
_held: Final[list[Held]] = []
"""What this process uses, until it ends."""


def local_path(source: Source) -> Path:
    """Return the path of a source, once all of it is in the cache.

    Raises:
        DataError: it cannot be brought; the message says why.
    """
    cache = Cache(folder())
    origin = origin_of(source)
    try:
        for attempt in range(1, _CHANGES_MAX + 1):
            held = cache.reserve([origin.list()])
            try:
                if not held.trees[0].complete:
                    size = held.listings[0].size
                    log().info("bringing data", source=source.location, size_bytes=size)
                cache.fill(held, 0, origin).run()
            except DataChanged:
                held.close()
                if attempt == _CHANGES_MAX:
                    raise
            except BaseException:
                held.close()
                raise
            else:
                break
    finally:
        origin.close()
    _held.append(held)
    return held.roots[0]


def folder() -> Path:
    """Return where it is."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "rung" / "data"
