"""Preemption: `ctx.preempt`."""

from typing import TypeVar

from rung.core._agent_connection import Connection
from rung.core._distributed import DistributedContext
from rung.core._train import TargetLength
from rung.core.ipc.protocol import Acknowledged

T = TypeVar("T")


class PreemptContext:
    """Tells the script when to checkpoint and exit."""

    def __init__(
        self, connection: Connection, target: TargetLength, distributed: DistributedContext
    ) -> None:
        self._connection = connection
        self._target = target
        self._distributed = distributed
        self._acknowledged = False
        self.final = False
        """Whether the last answer was True because the search has stopped the trial: it will not
        train again, so a new checkpoint is not needed if there is an earlier one."""

    def should_preempt(self, *, auto_ack: bool = True) -> bool:
        """Return whether the script should checkpoint and exit now; costs next to nothing.

        It should when the platform asks for it (a pause, a stop, a preemption), and when the run
        was validated at its length. In the first case the request is acknowledged, unless
        `auto_ack` is False: a script that exits after that is resumed later. In the second the
        run has finished.

        Where the run has several processes, all of them must call this at the same step, and get
        the chief's answer.
        """
        leave, _ = self.agree(None, auto_ack=auto_ack)
        return leave

    def agree(self, wish: T, *, auto_ack: bool = True) -> tuple[bool, T]:
        """Return `should_preempt`, and the chief's `wish`, with one message to the ranks.

        Args:
            wish: a value; the chief's is returned on all ranks.
            auto_ack: as of `should_preempt`.
        """
        leave = self._target.reached or self._connection.preempted
        final = self._connection.final and not self._target.reached
        if self._distributed.size > 1:
            said = (leave, final, wish)
            leave, final, wish = self._distributed.broadcast(said)
        self.final = final
        if leave and auto_ack and not self._target.reached:
            self.acknowledge_preemption_signal()
        return leave, wish

    def acknowledge_preemption_signal(self) -> None:
        """Acknowledge that the script is about to exit because it was asked to."""
        if not self._acknowledged and self._distributed.is_chief:
            self._acknowledged = True
            self._connection.send(Acknowledged())
