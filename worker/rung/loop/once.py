"""One training in a run: a checkpoint holds how far that is, not which of several it is in."""

import weakref
from typing import Final

from rung import core
from rung.loop.errors import CannotFollow

_begun: Final = weakref.WeakSet[core.Context]()


def begin(run: core.Context, call: str) -> None:
    """Take note that a run trains.

    Args:
        run: what `init` returned.
        call: what the script calls to train.

    Raises:
        CannotFollow: it trained already.
    """
    if run in _begun:
        raise CannotFollow(
            f"this run has called {call} before; when it goes on, Rung could not tell how much of "
            "each call was done: train in one call, or make of each a script and an experiment "
            "of its own, the later ones with the weights that the one before has stored"
        )
    _begun.add(run)
