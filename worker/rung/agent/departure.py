"""How a run is made to leave: asked first, killed when it has not left in time.

Asked means a `Preempt` message to the processes that are connected. A program that never
connected does not know the platform's words, and gets SIGTERM, once.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rung.agent.endpoint import Connection
from rung.agent.outcome import Conduct
from rung.core.protocol import Preempt
from rung.events.trial import RunSpec

ASKED_BY: Final = 0.6
"""How much of the time that the cloud leaves passes before the agent itself asks whoever is still
there: the scheduler asked them at its beginning."""
_KILLED_BY: Final = 0.85
_ARRIVED_BY: Final = 0.95
"""Until then their checkpoints may be on their way; the rest is for the agent's goodbye."""
_GRACE_S: Final = 3600.0


class Respite(NamedTuple):
    """What runs have left when the agent itself goes, in seconds."""

    leave_s: float
    """Until they are killed."""
    deliver_s: float
    """After that, for their checkpoints to arrive."""


def respite_of(notice_s: float, least_s: float) -> Respite:
    """Return what is left once `ASKED_BY` of the time that the cloud leaves has passed.

    Args:
        notice_s: how long that time was.
        least_s: what trials get in any case.
    """
    grace_s = max(least_s, notice_s * (_KILLED_BY - ASKED_BY))
    return Respite(grace_s, notice_s * (_ARRIVED_BY - _KILLED_BY))


class Departure:
    """What the platform does to end one launched run, and what passes meanwhile."""

    def __init__(self, signal_all: Callable[[signal.Signals], None]) -> None:
        """Begin to watch a run, all of whose processes get what `signal_all` is called with."""
        self._signal_all = signal_all
        self._leave_at = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self.conduct = Conduct()

    def acknowledge(self) -> None:
        """Note that the script saw that it shall leave."""
        self.conduct = self.conduct._replace(acknowledged=True)

    def refuse(self, reason: str) -> None:
        """Note that the script cannot train with its hyperparameters."""
        self.conduct = self.conduct._replace(refusal=reason)

    def ask(self, grace_s: float, connections: Sequence[Connection], *, spoke: bool) -> None:
        """Ask the run to leave within the grace period, and no later than when asked before.

        Args:
            grace_s: after so many seconds it is killed.
            connections: its processes that are connected.
            spoke: whether any ever was.
        """
        loop = asyncio.get_running_loop()
        leave_at = loop.time() + grace_s
        if self._deadline is None or leave_at < self._leave_at:
            self.close()
            self._leave_at = leave_at
            reason = f"killed: it did not leave within {grace_s:g} s after it was asked to"
            self._deadline = loop.call_at(leave_at, self.kill, reason)
        self.conduct = self.conduct._replace(asked_to_leave=True)
        for connection in connections:
            self.remind(connection)
        if not spoke and not self.conduct.sent_sigterm:  # a second one may end its saving
            self.conduct = self.conduct._replace(sent_sigterm=True)
            self._signal_all(signal.SIGTERM)

    def remind(self, connection: Connection) -> None:
        """Tell a process that has connected only now, if the run was asked to leave."""
        if self.conduct.asked_to_leave:
            left_s = max(0.0, self._leave_at - asyncio.get_running_loop().time())
            connection.say(Preempt(round(left_s * 1000)))

    def kill(self, reason: str) -> None:
        """Kill the run at once."""
        self.conduct = self.conduct._replace(sent_sigkill=reason)
        self._signal_all(signal.SIGKILL)

    def end_hanging(self, reason: str) -> None:
        """Kill the run because it hangs, which is a failure of its own."""
        self.conduct = self.conduct._replace(hung=reason)
        self._signal_all(signal.SIGKILL)

    def close(self) -> None:
        """Stop waiting for the end of the grace period."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def grace_of(spec: RunSpec, most_s: float) -> float:
    """Return how many seconds a run may take to leave: what it asks for, but no more than that."""
    asked = spec.config.get("preemption_timeout")
    return min(float(asked) if isinstance(asked, int | float) else _GRACE_S, most_s)
