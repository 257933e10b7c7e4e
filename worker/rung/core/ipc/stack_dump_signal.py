"""Stack dump signal: makes a process print the stacks of all its threads.

The handler is C code that needs neither the GIL nor the main thread, so it works in a process that
is stuck in a library, too. Forked processes inherit it; executed programs install it when they
call `core.init()`.
"""

import faulthandler
import signal
from typing import Final

SIGNAL: Final = signal.SIGRTMAX - 3
"""Not known to be used by scripts, schedulers or profilers. It ends processes without a
handler."""


def listen() -> None:
    """Install the handler, which prints the stacks of all threads to stderr."""
    faulthandler.register(SIGNAL, file=2, all_threads=True, chain=False)
