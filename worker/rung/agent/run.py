"""One run on this agent: from its grant to the release of its slots.

    (before)    the agent has fetched the configuration
    prepare     unpack the code, wait for the warm parent; where there are several processes, agree
                on where they meet
    launch      a process is forked for each slot; `TrialStarted`
    live        they speak over the socket and print; the scheduler may ask them to leave
    settle      they and all they started are gone; read to the end what they said
    report      `TrialExited`, then `AllocationReleased`

Of a run over several agents, the first says how it ended. Another speaks of it only where its own
part failed; the scheduler then has the others stopped, for the same reason.

Whatever keeps a run from starting is reported as its failure. Three kinds of end are not reported
at all, because the scheduler declares the run lost by itself: the warm parent died (the agent
takes a new incarnation), the agent goes down (`AgentLeft`), the agent died.
"""

import asyncio
import contextlib
import math
import secrets
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs

from rung.agent.command import InvalidEntrypoint
from rung.agent.conversation import Concerned, Conversation
from rung.agent.crew import Crew
from rung.agent.delivery import Delivery
from rung.agent.departure import Departure, Respite, grace_of
from rung.agent.launcher import places, wanted
from rung.agent.launching import Identity, launch_of, network_of
from rung.agent.lines import Level
from rung.agent.log_quota import MIN_BYTES
from rung.agent.member import members_of
from rung.agent.node import Node
from rung.agent.outcome import Ending, facts_of
from rung.agent.outside import NEWS_S, Outside
from rung.agent.rendezvous import Rendezvous
from rung.agent.reports import Reports
from rung.agent.source_folder import CodeUnusable
from rung.agent.starter import NotStarted
from rung.agent.supply import Provision
from rung.agent.suspension import NO_START
from rung.agent.watch import Watch
from rung.agent.wire import Launch, View
from rung.core.protocol import Welcome
from rung.events import RungError
from rung.events.allocation import AllocationGranted
from rung.events.trial import TrialStarted, Withdrawal
from rung.runtime import tracing
from rung.runtime.health.disk import words_of

_ROOM_S: Final = 600.0
"""How long a part of a gang waits for room in its agent's cache: the other parts hold slots, and
room, which those that it waits for may be waiting for."""


class Run:
    """Carries out one grant."""

    def __init__(
        self,
        node: Node,
        granted: AllocationGranted,
        share: int,
        incarnation: int,
        unusable: Exception | None = None,
    ) -> None:
        """Take a grant; nothing is started yet.

        Args:
            node: what the runs of the agent share.
            granted: with the configuration, where that could be had.
            share: which of the shares is this agent's.
            incarnation: of this agent.
            unusable: why the configuration could not be had, which is what the run fails with.
        """
        self._unusable = unusable
        self.allocation_id = granted.allocation_id
        self._node = node
        self._spec = granted.spec
        self._slots = granted.shares[share].slots
        self._wanted = wanted(granted.spec.config)
        self._places = places(granted.shares, share, self._wanted.launcher)
        self._chief = share == 0
        self._gang = len(granted.shares) > 1
        self._rank = self._places[0].rank
        self._incarnation = incarnation
        self._trace = tracing.current()
        log_bytes = log_bytes_of(granted, node.settings.logs_max_bytes)
        self._reports = Reports(node.spool, granted.spec, log_bytes)
        self._preparation: asyncio.Task[list[Launch]] | None = None
        self._frameworks = True
        self._launched = False
        self._started = False
        self._outside = Outside()
        ranks = [place.rank for place in self._places]
        members = members_of(granted.allocation_id, ranks, node.starter)
        self._crew = Crew(members, self._reports, ranked=self._places[0].size > 1)
        self._departure = Departure(self._crew.send)
        self._rendezvous = Rendezvous(node, granted, share, self._wanted)
        self._watch = Watch(node, granted.spec, self._reports, self._departure, self._rank)
        self._data = Provision()
        self._delivery = Delivery(node.depot, granted.spec, self._warn, node.clock)
        concerned = Concerned(
            self._reports, self._departure, self._watch, self._delivery, self._note_start
        )
        self.conversation: Final = Conversation(
            secrets.token_hex(16), granted.spec, self._rank, self._welcome, concerned
        )

    @property
    def launched(self) -> bool:
        """Whether a process was asked for."""
        return self._launched

    async def carry_out(self) -> None:
        """Live through the run, to its release."""
        try:
            try:
                ending = await self._delivered(await self._live())
            except (CodeUnusable, InvalidEntrypoint, NotStarted, RungError, OSError) as error:
                fault = error.fault if isinstance(error, CodeUnusable) else ""
                message = f"{NO_START}{words_of(error)}"
                ending = Ending("failed", None, None, message, fault)
                self._reports.note("error", ending.message, self._rank)
            if ending is not None:
                ending = await self._blamed(ending)
        finally:
            self._departure.close()
            self._data.close()
            self._reports.close()
            self._crew.close()
            await self._rendezvous.close()
        if ending is not None and self._gang:
            ending = await self._outside.explained(ending)
        if ending is not None:
            self._report(ending)
        await asyncio.to_thread(self._node.sources.discard, self.allocation_id)
        await asyncio.to_thread(self._delivery.release)
        await asyncio.to_thread(self._node.isolation.release, self.allocation_id)

    def ask(self, how: Withdrawal, reason: str = "", *, machine: bool = False) -> None:
        """Make the run stop, as the scheduler wants it.

        Args:
            how: by asking, or by force.
            reason: what failed on another agent, where that is why.
            machine: whether that agent's machine is to blame.
        """
        if not self._outside.ask(how, reason, machine=machine):
            return
        if not self._launched:
            if self._preparation is not None:
                self._preparation.cancel()
        elif how == "kill":
            self._delivery.hurry()
            self._departure.kill(reason or "killed, as asked")
        else:
            self._ask_to_leave()

    def leave(self, respite: Respite) -> None:
        """Make the launched run stop because the agent itself goes down."""
        assert self._launched
        self._outside.leave()
        asyncio.get_running_loop().call_later(sum(respite), self._delivery.hurry)
        if self._outside.asked != "kill":
            self._ask_to_leave(respite.leave_s)

    def _ask_to_leave(self, within_s: float = math.inf) -> None:
        grace_s = grace_of(self._spec, self._node.settings.grace_s_max)
        said = self.conversation
        self._departure.ask(min(grace_s, within_s), said.connections, spoke=said.spoke)

    def give_up(self) -> None:
        """End the run after an error of the agent's own."""
        if self._launched:
            self._departure.kill("killed after an error inside the agent")
        self._report(Ending("failed", None, None, "an error inside the agent; see its log"))

    async def _live(self) -> Ending | None:
        """Return how the run ended, None if the scheduler will know without being told."""
        if self._outside.asked is None:
            self._preparation = asyncio.create_task(self._prepare())
            try:
                launches = await self._preparation
            except asyncio.CancelledError:
                if self._outside.asked is None:
                    raise
        if self._outside.asked is not None:
            return self._outside.unstarted()
        for member in self._crew.members:
            member.listen(self._reports)
        self._launched = True
        try:
            whole = await self._process(launches)
            await self.conversation.ended(self._node, self._crew.members)
        finally:
            self._crew.close()
            self.conversation.abort()
        return self._judge() if whole else None

    async def _delivered(self, ending: Ending | None) -> Ending | None:
        """Return how the run ended once its checkpoints have arrived."""
        lost = ending is None and not self._outside.leaving
        broken = ending is None or ending.outcome not in {"finished", "preempted"}
        await self._delivery.finish(
            self._node.settings.leave_s if lost else None, broken=broken and not self._gang
        )
        if self._outside.alone and self._delivery.pending:
            return None  # it goes with the agent: what it stored last would not count
        problem = self._delivery.problem
        if ending is None or not problem or ending.outcome not in {"finished", "preempted"}:
            return ending
        return Ending("failed", ending.code, ending.signal, problem)

    async def _blamed(self, ending: Ending) -> Ending:
        """Return how the run ended, with the machine to blame where its disk failed."""
        suspension = self._node.suspension
        if ending.outcome in {"finished", "preempted"}:
            suspension.worked()
        if ending.outcome != "failed" or self._outside.reason:
            return ending
        folder = self._node.sources.folder_of(self.allocation_id)
        blame = await suspension.blame(ending.message, folder)
        if blame is None:
            return ending
        text = "the machine failed this run, which counts as no restart"
        self._reports.note("error", f"{text}: {blame.reason}", self._rank)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(blame.wait_s, NEWS_S) if self._gang else blame.wait_s):
                await self._outside.over()
        message = (
            ending.message
            if blame.reason in ending.message
            else f"{blame.reason} ({ending.message})"
        )
        return ending._replace(machine=True, message=message)

    def _warn(self, text: str) -> None:
        self._reports.note("warning", text, self._rank)

    def _tell(self, text: str) -> None:
        self._reports.note("info", text, self._rank)

    async def _prepare(self) -> list[Launch]:
        node, spec = self._node, self._spec
        if self._unusable is not None:
            raise self._unusable
        if node.suspension.reason is not None:
            self._warn(f"the run waits: {node.suspension.reason}")
        await node.suspension.over()
        self._delivery.open()
        prepare = partial(node.sources.prepare, self.allocation_id, spec.code_digest)
        source = await node.depot.patiently("the code", self._warn, prepare)
        self._data = await node.supply.open(
            spec.config, source.folder, self._tell, _ROOM_S if self._gang else math.inf
        )
        meeting = await self._rendezvous.meeting(self._tell)
        view = await asyncio.to_thread(self._view, source.folder)
        user = node.isolation.user_of(self.allocation_id)
        launches = []
        for member, place in zip(self._crew.members, self._places, strict=True):
            token = self.conversation.token
            identity = Identity(member.name, self.allocation_id, token, place, node.socket)
            network = network_of(self._wanted, place, meeting, node.settings.interface)
            launch = launch_of(
                spec, identity, self._slots, node.slots, source.folder, network, view, user
            )
            launch = structs.replace(launch, groups=list(node.isolation.groups))
            launch.environment.update(self._data.variables)
            launches.append(launch)
        self._frameworks = source.frameworks and launches[0].command.how != "execute"
        await node.starter.ready(frameworks=self._frameworks)
        return launches

    def _view(self, folder: Path) -> View | None:
        """Make the run's folders, and return what it sees."""
        node = self._node
        own, readable = self._delivery.prepare(node.isolation)
        node.isolation.own(folder, self.allocation_id)
        data = [Path(path) for path in self._data.variables.values()]
        return node.isolation.view(
            [folder, node.socket.parent, *own], [*readable, node.supply.folder.resolve()], data
        )

    def _welcome(self, rank: int) -> Welcome:
        """Return what a process hears first; it has one of the run's slots, or all if alone."""
        slots, local = self._slots, rank - self._rank
        if len(self._places) > 1:
            slots = slots[local : local + 1] if local >= 0 else []
        delivery = self._delivery
        return Welcome(
            self._spec,
            self._node.agent_id,
            delivery.url,
            slots,
            staged=delivery.staged,
            within=delivery.within,
        )

    async def _process(self, launches: list[Launch]) -> bool:
        """Have the processes made, and wait for their ends; return False if they were lost."""
        living = asyncio.create_task(
            self._crew.live(
                launches,
                self._departure,
                frameworks=self._frameworks,
                begun=self._note_start,
            )
        )
        try:
            await self._crew.begun.wait()
            folder = Path(launches[0].folder)
            async with self._watch.over(
                self._crew.mains, folder, self._slots, self._data.arrived, self._delivery
            ):
                return await living
        finally:
            living.cancel()

    def _note_start(self) -> None:
        """Write `TrialStarted`, before anything else that the run has to say."""
        if not self._started:
            self._started = True
            if self._chief:
                spec = self._spec
                started = TrialStarted(
                    experiment_id=spec.experiment_id,
                    trial_id=spec.trial_id,
                    run=spec.run,
                    agent_id=self._node.agent_id,
                )
                with tracing.following(self._trace):
                    self._reports.put(started)

    def _judge(self) -> Ending | None:
        for end in self._crew.ends:
            if end.exited.left_over:
                stuck = f"{end.exited.left_over} processes do not die, stuck in the kernel"
                self._reports.note("error", stuck, end.member.rank)
        ending = self._crew.judge(self._departure.conduct, self._watch.explain)
        if self._outside.reason and ending.outcome != "invalid_hp":
            ending = ending._replace(outcome="failed", message=self._outside.reason)
        level: Level = "error" if ending.outcome == "failed" else "info"
        if ending.message:
            self._reports.note(level, ending.message, self._rank)
        if self._outside.alone and (
            ending.outcome in {"preempted", "killed"} or self._departure.conduct.sent_sigterm
        ):
            return None
        return ending

    def _report(self, ending: Ending) -> None:
        node = self._node
        broken = ending.outcome in {"failed", "invalid_hp"} and not self._outside.reason
        steps = self._watch.steps
        if not self._chief and steps is None:
            # Only the first agent hears of steps; two faults are the same one at the same step.
            ending = ending._replace(fault="")
        facts = facts_of(
            ending,
            self._spec,
            node.agent_id,
            pool=node.settings.pool,
            incarnation=self._incarnation,
            failed=ending.message or "failed" if broken and self._gang else "",
            steps=steps,
            under_way=self._delivery.under_way,
        )
        node.spool.put(*(facts if self._chief or broken else facts[1:]))


def log_bytes_of(granted: AllocationGranted, most: int) -> int:
    """Return how much of a run's log one of its agents stores: an equal part of what all may.

    Args:
        granted: the run's allocation.
        most: what the installation stores of a run.
    """
    asked = (granted.spec.config.get("logs") or {}).get("max_bytes") or most
    return max(MIN_BYTES, min(asked, most) // len(granted.shares))
