"""Termination of a run: it is asked to exit, and killed after its grace period.

Connected processes receive a `Preempt` message. A run of which no process called `core.init()`
does not use this protocol, and gets SIGTERM, once: each rank's main process, or where that is a
shell, what it has started. SIGKILL at the end of the grace period goes to all their processes.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rung.agent.run.ending import Conduct
from rung.agent.run.ipc_server import Connection
from rung.core.ipc.protocol import Preempt
from rung.events.trial import RunSpec

ASKED_BY: Final = 0.6
"""The part of a preemption notice after which the agent itself asks the remaining runs to exit;
the
scheduler asked them at its beginning."""
_KILLED_BY: Final = 0.85
_ARRIVED_BY: Final = 0.95
"""Until then their checkpoints may be uploaded; the rest is for the agent's leave."""
_GRACE_S: Final = 3600.0


class GracePeriod(NamedTuple):
    """The time that runs have when the agent leaves, in seconds."""

    leave_s: float
    """Time until they are killed."""
    upload_s: float
    """Time after that for their checkpoints to be uploaded."""


def grace_period_of(notice_s: float, least_s: float) -> GracePeriod:
    """Return the time that is left once `ASKED_BY` of a preemption notice has passed.

    Args:
        notice_s: the length of the notice.
        least_s: the least time for trials to checkpoint.
    """
    grace_s = max(least_s, notice_s * (_KILLED_BY - ASKED_BY))
    return GracePeriod(grace_s, notice_s * (_ARRIVED_BY - _KILLED_BY))


class Termination:
    """Ends one launched run, and records what was sent to it and what it answered."""

    def __init__(self, signal_all: Callable[[signal.Signals], None]) -> None:
        """Prepare to end a run; `signal_all` sends a signal to all its processes."""
        self._signal_all = signal_all
        self._leave_at = 0.0
        self._final = False
        self._deadline: asyncio.TimerHandle | None = None
        self.conduct = Conduct()

    def acknowledge(self, *, unattended: bool = False) -> None:
        """Record that the script has acknowledged the request to exit.

        Args:
            unattended: whether it exits because there was no agent for too long.
        """
        asked = self.conduct.asked_to_leave or unattended
        self.conduct = self.conduct._replace(acknowledged=True, asked_to_leave=asked)

    def refuse(self, reason: str) -> None:
        """Record that the script refused its hyperparameters."""
        self.conduct = self.conduct._replace(refusal=reason)

    def ask(
        self,
        grace_s: float,
        connections: Sequence[Connection],
        *,
        spoke: bool,
        final: bool = False,
    ) -> None:
        """Ask the run to exit within the grace period; an earlier deadline stays in force.

        Args:
            grace_s: after so many seconds it is killed.
            connections: its processes that are connected.
            spoke: whether any ever was.
            final: whether the search stopped the trial.
        """
        self._final = self._final or final
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
        if not spoke and not self.conduct.sent_sigterm:  # a second one may interrupt its saving
            self.conduct = self.conduct._replace(sent_sigterm=True)
            self._signal_all(signal.SIGTERM)

    @property
    def leave_at_ms(self) -> int:
        """When the run is killed, Unix time in milliseconds; 0 if it was not asked to exit."""
        if self._deadline is None:
            return 0
        left_s = self._leave_at - asyncio.get_running_loop().time()
        return round((time.time() + left_s) * 1000)

    @property
    def final(self) -> bool:
        """Whether the search stopped the trial."""
        return self._final

    def resume(self, conduct: Conduct, leave_at_ms: int, *, final: bool) -> None:
        """Continue the termination that an earlier session of the agent began.

        Args:
            conduct: as it was saved.
            leave_at_ms: when the run is to be killed, 0 if it is not.
            final: whether the search stopped the trial.
        """
        self.conduct, self._final = conduct, final
        if leave_at_ms:
            left_s = max(0.0, leave_at_ms / 1000 - time.time())
            loop = asyncio.get_running_loop()
            self._leave_at = loop.time() + left_s
            reason = "killed: it did not leave in time after it was asked to"
            self._deadline = loop.call_at(self._leave_at, self.kill, reason)
        if conduct.sent_sigkill is not None or conduct.hung is not None:
            self._signal_all(signal.SIGKILL)

    def remind(self, connection: Connection) -> None:
        """Send `Preempt` to a process that has just connected, if the run was asked to exit."""
        if self.conduct.asked_to_leave:
            left_s = max(0.0, self._leave_at - asyncio.get_running_loop().time())
            connection.send(Preempt(round(left_s * 1000), self._final))

    def kill(self, reason: str) -> None:
        """Kill the run at once."""
        self.conduct = self.conduct._replace(sent_sigkill=reason)
        self._signal_all(signal.SIGKILL)

    def end_hanging(self, reason: str) -> None:
        """Kill the run because it hangs, which counts as its failure."""
        self.conduct = self.conduct._replace(hung=reason)
        self._signal_all(signal.SIGKILL)

    def close(self) -> None:
        """Cancel the end of the grace period."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def grace_of(spec: RunSpec, most_s: float) -> float:
    """Return the grace period of a run in seconds: the configured one, at most `most_s`."""
    asked = spec.config.get("preemption_timeout")
    return min(float(asked) if isinstance(asked, int | float) else _GRACE_S, most_s)
