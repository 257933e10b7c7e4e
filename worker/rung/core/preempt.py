"""Leaving in good order: `ctx.preempt`."""

from rung.core.goal import Goal
from rung.core.link import Link
from rung.core.protocol import Acknowledged


class PreemptContext:
    """Says when to checkpoint and leave."""

    def __init__(self, link: Link, goal: Goal) -> None:
        self._link = link
        self._goal = goal
        self._acknowledged = False

    def should_preempt(self, *, auto_ack: bool = True) -> bool:
        """Return whether the script should checkpoint and leave now; costs next to nothing.

        That is so when the platform asks for it (a pause, a stop, a more important neighbour),
        and when the run was validated at its length. In the first case the answer is
        acknowledged, unless `auto_ack` is off: a script that leaves after that is to be
        continued. In the second it has finished.
        """
        if self._goal.reached:
            return True
        if not self._link.preempted:
            return False
        if auto_ack:
            self.acknowledge_preemption_signal()
        return True

    def acknowledge_preemption_signal(self) -> None:
        """Say that the script is about to leave because it was asked to."""
        if not self._acknowledged:
            self._acknowledged = True
            self._link.send(Acknowledged())
