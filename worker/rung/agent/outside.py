"""What one agent's part of a run hears from outside: that it is to end, and why.

Where ranks on another agent fail or are lost, the ranks here soon fail, too, and say only that.
Their end is then told in the words of the other part.
"""

import asyncio
import contextlib
from typing import Final

from rung.agent.aftermath import is_aftermath
from rung.agent.outcome import Ending
from rung.events.trial import ExitOutcome, Withdrawal

AFTERMATH_S: Final = 10.0
"""How long a failure that says that another agent's rank was lost waits for news of that."""


class Outside:
    """What the scheduler and the agent want of a run."""

    def __init__(self) -> None:
        self.asked: Withdrawal | None = None
        """How the scheduler wants the run to end, if it does."""
        self.reason = ""
        """What failed on another agent, where that is why."""
        self.leaving = False
        """Whether the agent itself goes down."""
        self._told = asyncio.Event()

    @property
    def alone(self) -> bool:
        """Whether the run ends because the agent goes down, and for no other reason."""
        return self.leaving and self.asked is None

    def ask(self, how: Withdrawal, reason: str) -> bool:
        """Note what the scheduler wants; return whether it is news."""
        if self.asked in {"kill", how}:
            return False
        self.asked, self.reason = how, reason
        self._told.set()
        return True

    def unstarted(self) -> Ending:
        """Return how a run ended that was to end before it started."""
        if self.reason:
            return Ending("failed", None, None, self.reason)
        outcome: ExitOutcome = "killed" if self.asked == "kill" else "preempted"
        return Ending(outcome, None, None, "withdrawn before it started")

    async def explained(self, ending: Ending) -> Ending:
        """Return the end in the words of another agent's part, where it follows from that."""
        if ending.outcome == "failed" and is_aftermath(ending.message):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AFTERMATH_S):
                    await self._told.wait()
            if self.reason:
                return ending._replace(message=self.reason)
        return ending
