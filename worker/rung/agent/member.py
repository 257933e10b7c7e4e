"""One process of a run: launched, heard, seen to its end."""

import signal
from collections.abc import Callable, Sequence

from rung.agent.capture import Capture
from rung.agent.reports import Reports
from rung.agent.starter import Starter
from rung.agent.wire import Exited, Launch


class Member:
    """A process with its rank."""

    def __init__(self, starter: Starter, name: str, rank: int) -> None:
        self.name = name
        """As the warm parent knows it."""
        self.rank = rank
        self.over = False
        """Whether it has ended."""
        self._starter = starter
        self._launched = False
        self._early: list[signal.Signals] = []
        """Sent before it was asked for."""
        self._captures: list[Capture] = []

    def listen(self, reports: Reports) -> None:
        """Make the pipes that it will print to."""
        rank = self.rank
        stdout = Capture(reports, lambda lines: reports.printed_out(lines, rank))
        stderr = Capture(reports, lambda lines: reports.printed_err(lines, rank), after=stdout)
        self._captures = [stdout, stderr]

    async def live(
        self, launch: Launch, *, frameworks: bool, begun: Callable[[int], None]
    ) -> Exited | None:
        """Have it made, and return how it ended; None if it was lost with its warm parent.

        Raises:
            NotStarted: it could not be made.
        """
        stdout, stderr = self._captures
        self._launched = True
        try:
            pid = await self._starter.launch(
                launch, stdout.write_end, stderr.write_end, frameworks=frameworks
            )
        finally:
            stdout.started()
            stderr.started()
        if pid is not None:
            begun(pid)
            for number in self._early:
                self.send(number)
        return await self._starter.exited(self.name)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives, or as soon as it does."""
        if not self._launched:
            self._early.append(number)
        elif not self.over:
            self._starter.signal(self.name, number)

    async def silent(self) -> None:
        """Return when everything was read that it printed."""
        for capture in self._captures:
            await capture.ended()

    def close(self) -> None:
        """Stop listening, and forget it."""
        for capture in self._captures:
            capture.close()
        self._starter.forget(self.name)


def members_of(allocation_id: str, ranks: Sequence[int], starter: Starter) -> list[Member]:
    """Return a member for each rank; a single one is called as the run."""
    if len(ranks) == 1:
        return [Member(starter, allocation_id, ranks[0])]
    return [Member(starter, f"{allocation_id}/{rank}", rank) for rank in ranks]
