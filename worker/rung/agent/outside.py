"""What one agent's part of a run hears from outside: that it is to end, and why.

Where ranks on another agent fail or are lost, the ranks here soon fail, too, and say only that. If
those failed, the end is told in their words, which come at once; where their machine is to blame,
that is said here, too, so that it is no restart whichever part the searcher reads of first. If
their agent was lost, the run is lost and has not failed; but that is known only when the agent was
silent for some time.
"""

import asyncio
import contextlib
from typing import Final

from rung.agent.aftermath import is_aftermath
from rung.agent.outcome import Ending
from rung.events.trial import ExitOutcome, Withdrawal

AFTERMATH_S: Final = 45.0
"""How long a failure that says that another agent's rank was lost waits for news of that: longer
than the scheduler waits for a silent agent, which is 30 s unless it was told otherwise."""
NEWS_S: Final = 20.0
"""How much later the failure of a part of several is reported at most where its machine is to
blame: the other parts must learn that while they wait for why they lost it."""


class Outside:
    """What the scheduler and the agent want of a run."""

    def __init__(self) -> None:
        self.asked: Withdrawal | None = None
        """How the scheduler wants the run to end, if it does."""
        self.reason = ""
        """What failed on another agent, where that is why."""
        self.machine = False
        """Whether that agent's machine is to blame, and not the script."""
        self.leaving = False
        """Whether the agent itself goes down."""
        self._over = asyncio.Event()

    @property
    def alone(self) -> bool:
        """Whether the run ends because the agent goes down, and for no other reason."""
        return self.leaving and self.asked is None

    def ask(self, how: Withdrawal, reason: str, *, machine: bool = False) -> bool:
        """Note what the scheduler wants; return whether it is news."""
        if self.asked in {"kill", how}:
            return False
        self.asked, self.reason, self.machine = how, reason, machine
        if how == "kill":
            self._over.set()
        return True

    async def over(self) -> None:
        """Return when the run is to be killed, or the agent goes down."""
        await self._over.wait()

    def leave(self) -> None:
        """Note that the agent goes down."""
        self.leaving = True
        self._over.set()

    def unstarted(self) -> Ending:
        """Return how a run ended that was to end before it started."""
        if self.reason:
            return Ending("failed", None, None, self.reason)
        outcome: ExitOutcome = "killed" if self.asked == "kill" else "preempted"
        return Ending(outcome, None, None, "withdrawn before it started")

    async def explained(self, ending: Ending) -> Ending | None:
        """Return how this part ended as seen from outside, once it is known what it follows from.

        None: the agent goes down, and the run is lost with it.
        """
        if ending.outcome != "failed" or ending.machine:
            return ending
        if not is_aftermath(ending.message):
            return ending._replace(machine=self.machine)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTERMATH_S):
                await self._over.wait()
        if self.reason:
            return ending._replace(message=self.reason, machine=self.machine)
        if self.asked == "kill":
            message = f"killed, as asked, after it had lost other ranks: {ending.message}"
            return ending._replace(outcome="killed", message=message, fault="")
        return None if self.leaving else ending
