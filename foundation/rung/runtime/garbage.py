"""Garbage collections that do not grow with what a process holds.

A collection of all generations visits every container there is, while nothing else runs: with
100,000 open trials that is a quarter of a second, again and again while they become more. States
of processors hold no cycles, so next to nothing is found in them.

So what survives such a collection is frozen, and later ones visit what came since. Cycles that
become garbage once they are frozen stay; therefore everything is visited again when twice as much
is frozen as was there at the last time. That is seldom, and bounds what stays by what is in use.
"""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

_OLDEST: Final = 2
"""The generation that is collected with all others."""
_FROZEN_MIN: Final = 500_000
"""With less frozen, nothing is visited again: a program with its libraries has about that much."""


class _Freezing:
    """Freezes what survives; called at each collection."""

    def __init__(self, frozen_min: int) -> None:
        self._frozen_min = frozen_min
        self._added = 0
        """How much was frozen since it was counted, much of it gone meanwhile."""
        self._whole = True
        """Whether nothing is frozen, so that the next collection visits everything."""
        self._room = frozen_min
        """How much may be frozen until it is counted."""
        self._limit = frozen_min
        """How much may be frozen until everything is visited again."""

    def __call__(self, phase: str, about: dict[str, int]) -> None:
        if phase != "stop" or about["generation"] != _OLDEST:
            return
        survivors = len(gc.get_objects(_OLDEST))
        gc.freeze()
        if self._whole:
            self._whole, self._added = False, 0
            self._limit = max(2 * survivors, self._frozen_min)
            self._room = self._limit - survivors
            return
        self._added += survivors
        if self._added > self._room:
            self._count()

    def _count(self) -> None:
        """Count what is frozen, and unfreeze it if that is too much."""
        frozen, self._added = gc.get_freeze_count(), 0
        if frozen > self._limit:
            gc.unfreeze()
            self._whole = True
        else:
            self._room = max(self._limit - frozen, self._frozen_min // 10)


@contextlib.contextmanager
def short_collections(*, frozen_min: int = _FROZEN_MIN) -> Iterator[None]:
    """Keep garbage collections short while the context lasts.

    Args:
        frozen_min: with less frozen, nothing that survived is visited again.
    """
    freezing = _Freezing(frozen_min)
    gc.callbacks.append(freezing)
    try:
        yield
    finally:
        gc.callbacks.remove(freezing)
        gc.unfreeze()
