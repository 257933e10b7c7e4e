"""Leaving in good order: `ctx.preempt`."""

from rung.core.distributed import DistributedContext
from rung.core.goal import Goal
from rung.core.link import Link
from rung.core.protocol import Acknowledged


class PreemptContext:
    """Says when to checkpoint and leave."""

    def __init__(self, link: Link, goal: Goal, distributed: DistributedContext) -> None:
        self._link = link
        self._goal = goal
        self._distributed = distributed
        self._acknowledged = False

    def should_preempt(self, *, auto_ack: bool = True) -> bool:
        """Return whether the script should checkpoint and leave now; costs next to nothing.

        That is so when the platform asks for it (a pause, a stop, a more important neighbour),
        and when the run was validated at its length. In the first case the answer is
        acknowledged, unless `auto_ack` is off: a script that leaves after that is to be
        continued. In the second it has finished.

        Where the run has several processes, all of them ask at the same step and get the chief's
        answer.
        """
        leave = self._goal.reached or self._link.preempted
        if self._distributed.size > 1:
            leave = self._distributed.broadcast(leave)
        if leave and auto_ack and not self._goal.reached:
            self.acknowledge_preemption_signal()
        return leave

    def acknowledge_preemption_signal(self) -> None:
        """Say that the script is about to leave because it was asked to."""
        if not self._acknowledged and self._distributed.is_chief:
            self._acknowledged = True
            self._link.send(Acknowledged())
