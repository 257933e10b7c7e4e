"""Kills the process at the n-th moment at which it is asked."""

import os
import signal


class Fuse:
    """Counts moments down."""

    def __init__(self, moment: int | None) -> None:
        self._left = moment

    def burn(self) -> None:
        """Count a moment; at the last one, die as by SIGKILL from outside."""
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
