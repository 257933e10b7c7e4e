"""One run on this agent: from its grant to the release of its slots.

    prepare     unpack the code, wait for the warm parent
    launch      a process is forked; `TrialStarted`
    live        the process speaks over the socket and prints; the scheduler may ask it to leave
    settle      the process and all it started are gone; read to the end what they said
    report      `TrialExited`, then `AllocationReleased`

Whatever keeps a run from starting is reported as its failure. Three kinds of end are not reported
at all, because the scheduler declares the run lost by itself: the warm parent died (the agent
takes a new incarnation), the agent goes down (`AgentLeft`), the agent died.
"""

import asyncio
import secrets
from functools import partial
from pathlib import Path
from typing import Final

from rung.agent.capture import Capture
from rung.agent.command import InvalidEntrypoint
from rung.agent.delivery import Delivery
from rung.agent.departure import Departure
from rung.agent.endpoint import Connection
from rung.agent.launching import Identity, launch_of
from rung.agent.lines import Level
from rung.agent.node import Node
from rung.agent.outcome import Ending, ending_of, facts_of
from rung.agent.reports import Reports
from rung.agent.saying import fact_of, problem_with
from rung.agent.source_folder import CodeUnusable
from rung.agent.starter import NotStarted
from rung.agent.supply import Provision
from rung.agent.watch import Watch
from rung.agent.wire import Exited, Launch
from rung.core import protocol
from rung.core.protocol import (
    Damaged,
    FromTrial,
    Reported,
    Restored,
    Stored,
    Welcome,
)
from rung.events import RungError
from rung.events.allocation import AllocationGranted
from rung.events.trial import ExitOutcome, TrialStarted, Withdrawal
from rung.host import trace

_SETTLE_S: Final = 10.0
_GRACE_S: Final = 3600.0
_IGNORED: Final = "rung ignored what the script said on its socket"


class Run:
    """Carries out one grant; a `Speaker` for the endpoint."""

    def __init__(
        self, node: Node, granted: AllocationGranted, rank: int, incarnation: int
    ) -> None:
        self.token = secrets.token_hex(16)
        self.allocation_id = granted.allocation_id
        self._node = node
        self._spec = granted.spec
        self._slots = granted.shares[rank].slots
        self._rank = rank
        self._incarnation = incarnation
        self._trace = trace.current()
        self._reports = Reports(node.spool, granted.spec)
        self._connections: list[Connection] = []
        self._silent = asyncio.Event()
        self._silent.set()
        self._preparation: asyncio.Task[Launch] | None = None
        self._frameworks = True
        self._launched = False
        self._started = False
        self._spoke = False
        self._asked: Withdrawal | None = None
        self._leaving = False
        self._departure = Departure(node.starter, granted.allocation_id)
        self._watch = Watch(node, granted.spec, self._reports, self._departure, rank)
        self._data = Provision()
        self._delivery = Delivery(node.depot, granted.spec, self._warn)

    @property
    def launched(self) -> bool:
        """Whether a process was asked for."""
        return self._launched

    async def carry_out(self) -> None:
        """Live through the run, to its release."""
        try:
            ending = await self._delivered(await self._live())
        except (CodeUnusable, InvalidEntrypoint, NotStarted, RungError, OSError) as error:
            ending = Ending("failed", None, None, f"the run could not start: {error}")
            self._reports.note("error", ending.message, self._rank)
        finally:
            self._departure.close()
            self._data.close()
            self._reports.close()
            self._node.starter.forget(self.allocation_id)
        if ending is not None:
            self._report(ending)
        await asyncio.to_thread(self._node.sources.discard, self.allocation_id)

    def ask(self, how: Withdrawal) -> None:
        """Make the run stop, as the scheduler wants it."""
        if self._asked in {"kill", how}:
            return
        self._asked = how
        if not self._launched:
            if self._preparation is not None:
                self._preparation.cancel()
        elif how == "kill":
            self._delivery.hurry()
            self._departure.kill("killed, as asked")
        else:
            self._departure.ask(self._grace_s(), self._connections, spoke=self._spoke)

    def leave(self, grace_s: float) -> None:
        """Make the launched run stop because the agent itself goes down."""
        assert self._launched
        self._leaving = True
        asyncio.get_running_loop().call_later(2 * grace_s, self._delivery.hurry)
        if self._asked != "kill":
            grace_s = min(grace_s, self._grace_s())
            self._departure.ask(grace_s, self._connections, spoke=self._spoke)

    def give_up(self) -> None:
        """End the run after an error of the agent's own."""
        if self._launched:
            self._departure.kill("killed after an error inside the agent")
        self._report(Ending("failed", None, None, "an error inside the agent; see its log"))

    def connected(self, connection: Connection) -> None:
        """Welcome a process of the run."""
        self._connections.append(connection)
        self._silent.clear()
        self._spoke = True
        self._note_start()
        url, staged = self._delivery.url, self._delivery.staged
        connection.say(Welcome(self._spec, self._node.agent_id, url, self._slots, staged=staged))
        self._departure.remind(connection)

    def disconnected(self, connection: Connection) -> None:
        """Note that a process of the run says no more."""
        self._connections.remove(connection)
        if not self._connections:
            self._silent.set()

    def rejected(self, reason: str) -> None:
        """Tell the run's log about something that was no message."""
        self._warn(f"{_IGNORED}: {reason}")

    def received(self, connection: Connection, message: FromTrial) -> None:
        """Take what a process of the run says."""
        self._watch.heard(message)
        match message:
            case protocol.Alive():
                pass
            case protocol.Hello():
                self.rejected("a second hello")
            case protocol.Acknowledged():
                self._departure.acknowledge()
            case protocol.HparamsRefused():
                self._departure.refuse(message.reason)
            case protocol.Fetch():
                self._delivery.fetch(connection, message)
            case _:
                self._take(connection, message)

    def _take(
        self, connection: Connection, message: Reported | Stored | Restored | Damaged
    ) -> None:
        """Turn a message into the fact that it means."""
        if (problem := problem_with(message)) is not None:
            self.rejected(problem)
            return
        if isinstance(message, Reported):
            self._reports.reported(message)
        elif isinstance(message, Damaged):
            text = f"checkpoint {message.checkpoint_id} is damaged: {message.reason}"
            self._reports.note("warning", text, connection.rank)
        elif isinstance(message, Stored) and self._delivery.staged:
            self._reports.flush()
            if (problem := self._delivery.stored(connection, message)) is not None:
                self.rejected(problem)
            return
        if (fact := fact_of(self._spec, message)) is not None:
            self._reports.put(fact)

    async def _live(self) -> Ending | None:
        """Return how the run ended, None if the scheduler will know without being told."""
        if self._asked is None:
            self._preparation = asyncio.create_task(self._prepare())
            try:
                launch = await self._preparation
            except asyncio.CancelledError:
                if self._asked is None:
                    raise
        if self._asked is not None:
            outcome: ExitOutcome = "killed" if self._asked == "kill" else "preempted"
            return Ending(outcome, None, None, "withdrawn before it started")
        reports, rank = self._reports, self._rank
        spool = self._node.spool
        stdout = Capture(spool, lambda lines: reports.printed_out(lines, rank))
        stderr = Capture(spool, lambda lines: reports.printed_err(lines, rank))
        try:
            exited = await self._process(launch, stdout, stderr)
            await self._settle(stdout, stderr)
        finally:
            stdout.close()
            stderr.close()
            for connection in list(self._connections):
                connection.abort()
        return self._judge(exited) if exited else None

    async def _delivered(self, ending: Ending | None) -> Ending | None:
        """Return how the run ended once its checkpoints have arrived."""
        leave_s = self._node.settings.leave_s
        await self._delivery.finish(leave_s if ending is None else None)
        if self._leaving and self._asked is None and self._delivery.pending:
            return None  # it goes with the agent: what it stored last would not count
        problem = self._delivery.problem
        if ending is None or not problem or ending.outcome not in {"finished", "preempted"}:
            return ending
        return Ending("failed", ending.code, ending.signal, problem)

    def _warn(self, text: str) -> None:
        self._reports.note("warning", text, self._rank)

    def _tell(self, text: str) -> None:
        self._reports.note("info", text, self._rank)

    async def _prepare(self) -> Launch:
        node, spec = self._node, self._spec
        self._delivery.open()
        prepare = partial(node.sources.prepare, self.allocation_id, spec.code_digest)
        source = await node.depot.patiently("the code", self._warn, prepare)
        self._data = await node.supply.open(spec.config, source.folder, self._tell)
        identity = Identity(self.allocation_id, self.token, self._rank, node.socket)
        launch = launch_of(spec, identity, self._slots, node.slots, source.folder)
        launch.environment.update(self._data.variables)
        self._frameworks = source.frameworks and launch.command.how != "execute"
        await node.starter.ready(frameworks=self._frameworks)
        return launch

    async def _process(self, launch: Launch, stdout: Capture, stderr: Capture) -> Exited | None:
        """Have the process made, and wait for its end."""
        starter = self._node.starter
        self._launched = True
        try:
            pid = await starter.launch(
                launch, stdout.write_end, stderr.write_end, frameworks=self._frameworks
            )
        finally:
            stdout.started()
            stderr.started()
        if pid is not None:
            self._note_start()
        mains, folder = [pid] if pid else [], Path(launch.folder)
        async with self._watch.over(mains, folder, self._slots, self._data.arrived):
            return await starter.exited(self.allocation_id)

    def _note_start(self) -> None:
        """Write `TrialStarted`, before anything else that the run has to say."""
        if not self._started:
            self._started = True
            if self._rank == 0:
                spec = self._spec
                started = TrialStarted(
                    experiment_id=spec.experiment_id,
                    trial_id=spec.trial_id,
                    run=spec.run,
                    agent_id=self._node.agent_id,
                )
                with trace.following(self._trace):
                    self._reports.put(started)

    async def _settle(self, stdout: Capture, stderr: Capture) -> None:
        """Read to the end what the processes said, who are all gone by now."""
        await self._node.endpoint.settled()
        while True:
            try:
                async with asyncio.timeout(_SETTLE_S):
                    await stdout.ended()
                    await stderr.ended()
                    await self._silent.wait()
            except TimeoutError:
                if self._node.spool.saturated:
                    continue
                text = "a process of this run does not die; what it still says is not read"
                self._reports.note("error", text, self._rank)
            return

    def _judge(self, exited: Exited) -> Ending | None:
        if exited.left_over:
            stuck = f"{exited.left_over} processes do not die, stuck in the kernel"
            self._reports.note("error", stuck, self._rank)
        words = self._reports.stderr.exception or self._reports.stderr.last
        ending = self._watch.explain(ending_of(exited, self._departure.conduct, words), exited)
        level: Level = "error" if ending.outcome == "failed" else "info"
        if ending.message:
            self._reports.note(level, ending.message, self._rank)
        went_with_the_agent = self._leaving and self._asked is None
        if went_with_the_agent and (
            ending.outcome in {"preempted", "killed"} or self._departure.conduct.sent_sigterm
        ):
            return None
        return ending

    def _report(self, ending: Ending) -> None:
        node = self._node
        facts = facts_of(
            ending,
            self._spec,
            node.agent_id,
            pool=node.settings.pool,
            incarnation=self._incarnation,
            steps=self._watch.steps,
        )
        node.spool.put(*(facts if self._rank == 0 else facts[1:]))

    def _grace_s(self) -> float:
        """Return how long the run may take to leave."""
        asked = self._spec.config.get("preemption_timeout")
        grace_s = float(asked) if isinstance(asked, int | float) else _GRACE_S
        return min(grace_s, self._node.settings.grace_s_max)
