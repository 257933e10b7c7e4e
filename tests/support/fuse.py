"""Kills the process at a moment of its training."""

import os
import signal
from collections.abc import Callable


class Fuse:
    """Burns down once."""

    def __init__(self, moment: int | None, settle: Callable[[], None] = lambda: None) -> None:
        """Die at a moment.

        Args:
            moment: of its training; None: never.
            settle: returns when what the process does behind its training is done, so that what
                it leaves does not depend on how fast that was.
        """
        self._moment = moment
        self._settle = settle
        self._asked = 0

    def burn(self) -> None:
        """Count a moment; at the one that was given, die as by SIGKILL from outside."""
        self._asked += 1
        self.reach(self._asked)

    def reach(self, moment: int) -> None:
        """Die if this is the moment, whichever run comes to it."""
        if moment == self._moment:
            self._settle()
            os.kill(os.getpid(), signal.SIGKILL)


def before(step: int) -> int:
    """Return the moment at which a step is trained, and nothing else is done."""
    return 2 * step - 1


def after(step: int) -> int:
    """Return the moment at which everything is done that is due after a step."""
    return 2 * step


def out(epoch: int) -> int:
    """Return the moment at which everything is done that is due after an epoch."""
    return -epoch
