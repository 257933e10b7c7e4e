"""Showing where a process is: on a signal of the platform's own it prints all its stacks.

The handler is C code that needs neither the interpreter's lock nor the main thread to come back
from wherever it is, so a process that is stuck in a library shows its stacks as well. Processes
that are forked from one that listens listen too; those that are executed do once they call
`core.init()`.
"""

import faulthandler
import signal
from typing import Final

SIGNAL: Final = signal.SIGRTMAX - 3
"""None that scripts, schedulers or profilers are known to use; it ends who does not listen."""


def listen() -> None:
    """Print the stacks of all threads to stderr whenever the signal comes."""
    faulthandler.register(SIGNAL, file=2, all_threads=True, chain=False)
