"""Process group: the processes of a run on this agent; the first failure ends all.

When a rank fails, the others are stopped, because they would only wait for it: SIGTERM at once,
SIGKILL a little later. `rung.agent.run.ending` decides which of the ends is the run's.
"""

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Final

from rung.agent.forkserver.messages import Exited, Launch
from rung.agent.forkserver.supervisor import ForkServers, NotStarted
from rung.agent.logs.capture import LogCapture
from rung.agent.outbox.event_buffer import EventBuffer
from rung.agent.run.ending import Exit, is_failure
from rung.agent.run.termination import Termination

_STUCK: Final = (
    "{} stuck in the kernel after SIGKILL, and may hold a device: the run's slots are released"
    " once none is left; see the kernel's log, and restart the machine if that takes long"
)


class RankProcess:
    """The process of one rank."""

    def __init__(self, fork_servers: ForkServers, name: str, rank: int) -> None:
        self.name = name
        """Its name in the fork server."""
        self.rank = rank
        self.over = False
        """Whether it has ended."""
        self._fork_servers = fork_servers
        self._launched = False
        self._early: list[signal.Signals] = []
        """Signals to send once it is launched."""
        self._captures: list[LogCapture] = []

    def listen(self, event_buffer: EventBuffer) -> None:
        """Create the pipes for its output, or take over those that it has."""
        rank, outputs = self.rank, self._fork_servers.outputs(self.name)
        stdout = LogCapture(
            event_buffer,
            lambda lines: event_buffer.printed_out(lines, rank),
            adopted=outputs[0] if outputs else None,
        )
        stderr = LogCapture(
            event_buffer,
            lambda lines: event_buffer.printed_err(lines, rank),
            after=stdout,
            adopted=outputs[1] if outputs else None,
        )
        self._captures = [stdout, stderr]

        def note(count: int) -> None:
            text = _STUCK.format("a process is" if count == 1 else f"{count} processes are")
            event_buffer.note("error", text, rank)

        self._fork_servers.on_stuck(self.name, note)

    async def run(
        self, launch: Launch, *, frameworks: bool, begun: Callable[[int], None]
    ) -> Exited | None:
        """Launch it, and return how it ended; None if it was lost with its fork server.

        Raises:
            NotStarted: it could not be created.
        """
        stdout, stderr = self._captures
        self._launched = True
        try:
            written = (stdout.write_end, stderr.write_end)
            read = (stdout.read_end, stderr.read_end)
            pid = await self._fork_servers.launch(launch, written, read, frameworks=frameworks)
        finally:
            stdout.started()
            stderr.started()
        if pid is not None:
            begun(pid)
            for number in self._early:
                self.send(number)
        return await self._fork_servers.exited(self.name)

    async def resume(self, begun: Callable[[int], None]) -> Exited | None:
        """Return how a process that was launched before ended; None if it was lost."""
        self._launched = True
        pid = await self._fork_servers.made(self.name)
        if pid is not None:
            begun(pid)
            for number in self._early:
                self.send(number)
        return await self._fork_servers.exited(self.name)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, or as soon as it is launched; ignored if it has ended."""
        if not self._launched:
            self._early.append(number)
        elif not self.over:
            self._fork_servers.signal(self.name, number)

    async def output_read(self) -> None:
        """Return when all its output was read."""
        for capture in self._captures:
            await capture.ended()

    def close(self) -> None:
        """Stop reading its output."""
        for capture in self._captures:
            capture.close()


def processes_of(
    allocation_id: str, ranks: Sequence[int], fork_servers: ForkServers
) -> list[RankProcess]:
    """Return a process for each rank; a single one has the name of the run."""
    if len(ranks) == 1:
        return [RankProcess(fork_servers, allocation_id, ranks[0])]
    return [RankProcess(fork_servers, f"{allocation_id}/{rank}", rank) for rank in ranks]


STOP_S: Final = 5.0
"""How long the other ranks may take to end on SIGTERM."""


class ProcessGroup:
    """The processes of a run on this agent."""

    def __init__(self, members: Sequence[RankProcess], event_buffer: EventBuffer) -> None:
        """Group processes, in the order of their ranks."""
        self.members = members
        self._exits: list[Exit] = []
        """In the order in which they ended."""
        self.mains: list[int] = []
        """The process ids."""
        self.begun: Final = asyncio.Event()
        """Set once each of them is created, or cannot be."""
        self._event_buffer = event_buffer
        self._refused: NotStarted | None = None
        self._lost = False
        self._stopper: asyncio.TimerHandle | None = None
        self.stopped_by: set[int] = set()
        """The signals by which the others were stopped."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of them."""
        for member in self.members:
            member.send(number)

    async def run(
        self,
        launches: Sequence[Launch] | None,
        termination: Termination,
        *,
        frameworks: bool,
        begun: Callable[[], None],
    ) -> bool:
        """Launch them and wait until all have ended; return False if they were lost.

        Where `launches` is None, they were launched before.

        Raises:
            NotStarted: one could not be created.
        """
        waiting = set(self.members)

        def settled(member: RankProcess) -> None:
            waiting.discard(member)
            if not waiting:
                self.begun.set()

        async def run_to_end(member: RankProcess, launch: Launch | None) -> None:
            def begins(pid: int) -> None:
                self.mains.append(pid)
                begun()
                settled(member)

            try:
                if launch is None:
                    exited = await member.resume(begins)
                else:
                    exited = await member.run(launch, frameworks=frameworks, begun=begins)
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
                self._ended(Exit(member.rank, exited, termination.conduct))

        made: list[Launch | None] = [None] * len(self.members)
        pairs = zip(self.members, made if launches is None else launches, strict=True)
        try:
            await asyncio.gather(*(run_to_end(*pair) for pair in pairs))
        finally:
            if self._stopper is not None:
                self._stopper.cancel()
        if self._refused is not None:
            raise self._refused
        return not self._lost

    def exits(self) -> list[Exit]:
        """Return how the processes ended; to be called when all their output was read."""
        buffer = self._event_buffer
        return [
            end._replace(
                exception=buffer.exception(end.rank),
                error_line=buffer.error_line(end.rank),
                last_lines=buffer.last_lines(end.rank),
            )
            for end in self._exits
        ]

    def close(self) -> None:
        """Stop reading the output of the processes."""
        for member in self.members:
            member.close()

    def _ended(self, end: Exit) -> None:
        self._exits.append(end)
        if is_failure(end.exited, end.conduct):
            self._stop_the_others()

    def _stop_the_others(self) -> None:
        if self._stopper is None and not all(member.over for member in self.members):
            loop = asyncio.get_running_loop()
            self._stopper = loop.call_later(STOP_S, self._stop, signal.SIGKILL)
            self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        self.stopped_by.add(number)
        self.send(number)
