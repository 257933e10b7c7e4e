"""The processes of a run on this agent: they begin together, and the first failure ends all.

A rank that fails takes the others along: what they would do without it is wait. They get SIGTERM
at once and SIGKILL a little later, and what becomes of them then says nothing about the run; its
end is the first failure's, in that rank's words. Where those say only that another rank was lost,
and one that ended about the same time says more, its words count.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rung.agent.aftermath import is_aftermath
from rung.agent.departure import Departure
from rung.agent.member import Member
from rung.agent.outcome import Conduct, Ending, ending_of, worst
from rung.agent.reports import Reports
from rung.agent.starter import NotStarted
from rung.agent.wire import Exited, Launch

Explain = Callable[[Ending, Exited, int], Ending]
"""Takes an ending, what the process did, and its rank."""

STOP_S: Final = 5.0
"""How long the other ranks may take to end on SIGTERM."""


class End(NamedTuple):
    """How one process ended, and what had passed between it and the platform until then."""

    member: Member
    exited: Exited
    conduct: Conduct


class Crew:
    """The members of a run."""

    def __init__(self, members: Sequence[Member], reports: Reports, *, ranked: bool) -> None:
        """Know the members.

        Args:
            members: in the order of their ranks.
            reports: of the run.
            ranked: whether the run has several processes, so that words need a rank.
        """
        self.members = members
        self.ends: list[End] = []
        """In the order in which they came."""
        self.mains: list[int] = []
        """The processes' numbers."""
        self.begun: Final = asyncio.Event()
        """Whether each of them was made, or will not be."""
        self._reports = reports
        self._ranked = ranked
        self._first: End | None = None
        self._refused: NotStarted | None = None
        self._lost = False
        self._stopper: asyncio.TimerHandle | None = None
        self._sent: set[int] = set()
        """By which signals the others were stopped."""

    def send(self, number: signal.Signals) -> None:
        """Send all of them a signal."""
        for member in self.members:
            member.send(number)

    async def live(
        self,
        launches: Sequence[Launch],
        departure: Departure,
        *,
        frameworks: bool,
        begun: Callable[[], None],
    ) -> bool:
        """See all of them to their ends; return False if they were lost with the warm parents.

        Raises:
            NotStarted: one could not be made.
        """
        waiting = set(self.members)

        def settled(member: Member) -> None:
            waiting.discard(member)
            if not waiting:
                self.begun.set()

        async def see_through(member: Member, launch: Launch) -> None:
            def made(pid: int) -> None:
                self.mains.append(pid)
                begun()
                settled(member)

            try:
                exited = await member.live(launch, frameworks=frameworks, begun=made)
            except NotStarted as error:
                member.over = True
                self._refused = self._refused or error
                self._stop_the_others()
                return
            finally:
                settled(member)
            member.over = True
            if exited is None:
                self._lost = True
            else:
                self._ended(End(member, exited, departure.conduct))

        pairs = zip(self.members, launches, strict=True)
        try:
            await asyncio.gather(*(see_through(*pair) for pair in pairs))
        finally:
            if self._stopper is not None:
                self._stopper.cancel()
        if self._refused is not None:
            raise self._refused
        return not self._lost

    def judge(self, conduct: Conduct, explain: Explain) -> Ending:
        """Return how the run ended, once all that was said is read.

        Args:
            conduct: what passed between the platform and the run in all.
            explain: adds to an ending what is known of its fault.
        """
        if self._first is not None:
            first = self._cause(self._first)
            before = first.conduct._replace(refusal=conduct.refusal)
            return self._named(first, _explained(explain, first, self._ending(first, before)))
        ends = sorted(self.ends, key=lambda end: end.member.rank)
        endings = [self._ending(end, conduct) for end in ends]
        number = worst(endings)
        return self._named(ends[number], _explained(explain, ends[number], endings[number]))

    def close(self) -> None:
        """Let go of what the processes held."""
        for member in self.members:
            member.close()

    def _ended(self, end: End) -> None:
        self.ends.append(end)
        outcome = ending_of(end.exited, end.conduct, "").outcome
        if self._first is None and outcome in {"failed", "invalid_hp"}:
            self._first = end
            self._stop_the_others()

    def _cause(self, first: End) -> End:
        """Return the failure that the first one heard of follows from, or itself."""
        if not is_aftermath(self._words(first)):
            return first
        for end in self.ends:
            said = self._words(end)
            failed = bool(end.exited.code) or end.exited.signal is not None
            if failed and not is_aftermath(said) and (said or not self._stopped(end)):
                return end
        return first

    def _words(self, end: End) -> str:
        """Return a process's last words; of one that was stopped, its traceback's alone.

        Whatever else it printed last, it may have been about to say more.
        """
        rank = end.member.rank
        if self._stopped(end):
            return self._reports.exception(rank)
        return self._reports.last_words(rank)

    def _stopped(self, end: End) -> bool:
        """Whether a process ended because another one had failed."""
        number = end.exited.signal
        sent = number in {signal.SIGTERM, signal.SIGKILL} and number in self._sent
        return sent and end is not self._first

    def _stop_the_others(self) -> None:
        if self._stopper is None and not all(member.over for member in self.members):
            loop = asyncio.get_running_loop()
            self._stopper = loop.call_later(STOP_S, self._stop, signal.SIGKILL)
            self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        self._sent.add(number)
        self.send(number)

    def _ending(self, end: End, conduct: Conduct) -> Ending:
        words = self._words(end)
        ending = ending_of(end.exited, conduct, words)
        if words and self._stopped(end):
            return ending._replace(message=f"{words} ({ending.message})")
        return ending

    def _named(self, end: End, ending: Ending) -> Ending:
        """Return the ending with the rank in its words, where there are several."""
        if not (self._ranked and ending.message and ending.outcome != "preempted"):
            return ending
        return ending._replace(message=f"rank {end.member.rank}: {ending.message}")


def _explained(explain: Explain, end: End, ending: Ending) -> Ending:
    return explain(ending, end.exited, end.member.rank)
