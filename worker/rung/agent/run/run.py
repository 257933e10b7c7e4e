"""One run on this agent: from its grant to the release of its slots.

    (before)    the agent has fetched the configuration
    prepare     unpack the code, wait for the fork server; for several processes, the rendezvous
    launch      a process is forked for each slot; `TrialStarted`
    live        they send messages and print; the scheduler may ask them to exit
    settle      they and all their descendants are gone; the rest of their messages is read
    report      `TrialExited`, then `AllocationReleased`

Of a run on several agents, the first one reports how it ended. Another one reports only a failure
of its own part; the scheduler then has the others stopped, for the same reason.

Whatever keeps a run from starting is reported as its failure. Two kinds of end are not reported,
because the scheduler records the run as lost by itself: the fork server died (the agent joins with
a new incarnation), or the agent leaves and its runs end with it (`AgentLeft`).

The state of the run is saved in the outbox (`SavedRun`), together with the facts that follow from
it. The next session of the agent resumes the run if a fork server still holds its processes.
"""

import asyncio
import contextlib
import math
import secrets
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import structs

from rung.agent.forkserver.messages import Launch, View
from rung.agent.forkserver.supervisor import NotStarted
from rung.agent.logs.line_splitter import Level
from rung.agent.logs.quota import MIN_BYTES
from rung.agent.membership.suspension import NO_START
from rung.agent.node import Node
from rung.agent.objects.data_provisioning import Provision
from rung.agent.objects.run_objects import RunObjects
from rung.agent.objects.run_secrets import RunSecrets, files_folder
from rung.agent.objects.source_folder import CodeUnusable
from rung.agent.outbox.event_buffer import EventBuffer
from rung.agent.outbox.outbox_file import Change, RunEnded
from rung.agent.rendezvous.framework_env import network_of, places
from rung.agent.rendezvous.rendezvous import Rendezvous, options_of
from rung.agent.run.ending import (
    DISK_WAIT_S,
    Ending,
    Evidence,
    StopRequest,
    ending_of,
    facts_of,
    wait_for_news,
)
from rung.agent.run.process_group import ProcessGroup, processes_of
from rung.agent.run.process_spec import Identity, InvalidEntrypoint, launch_of
from rung.agent.run.saved_run import SavedRun
from rung.agent.run.termination import GracePeriod, Termination, grace_of
from rung.agent.run.trial_session import Handlers, TrialSession
from rung.agent.run.watchdog import Watchdog
from rung.core.ipc.environment import SECRETS_VARIABLE
from rung.core.ipc.protocol import FromAgent, Welcome
from rung.events import RungError
from rung.events.allocation import AllocationGranted
from rung.events.trial import RunSpec, TrialStarted, Withdrawal
from rung.runtime import tracing
from rung.storage.disk_fault import words_of

_NO_SECRETS: Final = RunSecrets()
_NOT_KEPT: Final = (
    "files that earlier runs of this trial wrote to their working folder, outside of checkpoints,"
    " are not here: they ran on another machine, or the files were removed to make room"
)
_ROOM_S: Final = 600.0
"""How long a part of a gang waits for room in its agent's cache. It must not wait for ever: the
other parts hold slots and room, for which the holders of its room may be waiting (a deadlock)."""


class Run:
    """One run on this agent."""

    def __init__(  # noqa: PLR0913, PLR0917 - a grant and its state
        self,
        node: Node,
        granted: AllocationGranted,
        share: int,
        incarnation: int,
        unusable: Exception | None = None,
        saved: SavedRun | None = None,
        opened: RunSecrets = _NO_SECRETS,
    ) -> None:
        """Accept a grant; nothing is started yet, unless an earlier session has launched it.

        Args:
            node: the parts of the agent that its runs share.
            granted: with the configuration, if that could be fetched.
            share: the index of this agent's share.
            incarnation: of this agent.
            unusable: why the configuration could not be fetched; the run fails with it.
            saved: the state that an earlier session of the agent saved.
            opened: the secrets of the run; they are in no file, nor in `granted`.
        """
        self._secrets = opened
        self._masked = opened.masked()
        self._unusable = unusable
        self._granted = granted
        self._share = share
        self._resumed = saved is not None and saved.launched
        self._since = saved.since if saved is not None else 0
        self._over = False
        """Whether its end is on record, or will not be."""
        self.allocation_id = granted.allocation_id
        self._node = node
        self._spec = granted.spec
        self._slots = granted.shares[share].slots
        self._wanted = options_of(granted.spec.config)
        self._places = places(granted.shares, share, self._wanted.launcher)
        self._chief = share == 0
        self._gang = len(granted.shares) > 1
        self._rank = self._places[0].rank
        self._incarnation = incarnation
        self._trace = tracing.current()
        log_bytes = log_bytes_of(granted, node.settings.logs_max_bytes)
        self._event_buffer = EventBuffer(node.outbox, granted.spec, log_bytes, self._masked)
        self._preparation: asyncio.Task[list[Launch]] | None = None
        self._frameworks = True
        self._launched = False
        self._started = False
        self._stop_request = StopRequest()
        self._known = Evidence(
            stop=self._stop_request, ranked=self._places[0].size > 1, gang=self._gang
        )
        ranks = [place.rank for place in self._places]
        members = processes_of(granted.allocation_id, ranks, node.fork_servers)
        self._process_group = ProcessGroup(members, self._event_buffer)
        self._termination = Termination(self._process_group.send)
        self._rendezvous = Rendezvous(
            node.settings,
            node.outbox,
            node.gang_addresses,
            granted,
            share,
            announced=saved.announced if saved is not None else None,
            private_key=saved.private_key if saved is not None else None,
            changes=self._changes,
        )
        self._watchdog = Watchdog(
            node, granted.spec, self._event_buffer, self._termination, self._rank
        )
        self._data = Provision()
        self._run_objects = RunObjects(
            node.checkpoint_upload, granted.spec, self._warn, self._send, self._changes, node.clock
        )
        concerned = Handlers(
            self._event_buffer,
            self._termination,
            self._watchdog,
            self._run_objects,
            node.best_validations,
            self._note_start,
            self._save,
        )
        self.trial_session: Final = TrialSession(
            secrets.token_hex(16) if saved is None else saved.token,
            granted.spec,
            self._rank,
            self._welcome,
            concerned,
            node.taken,
        )
        if saved is not None and saved.launched:
            self._resume(saved)

    @property
    def launched(self) -> bool:
        """Whether a process was requested."""
        return self._launched

    async def carry_out(self) -> None:
        """Carry the run out, from its preparation to its release.

        Cancelled, it leaves the processes as they are, for the next session of the agent.
        """
        known = self._known
        try:
            try:
                await self._live()
                await self._upload()
            except (CodeUnusable, InvalidEntrypoint, NotStarted, RungError, OSError) as error:
                known.unstarted = f"{NO_START}{words_of(error)}"
                known.unstarted_fault = error.fault if isinstance(error, CodeUnusable) else ""
                self._event_buffer.note("error", known.unstarted, self._rank)
            await self._check_disk()
        finally:
            self._termination.close()
            self._data.close()
            self._event_buffer.close()
            self._process_group.close()
            await self._rendezvous.close()
        await wait_for_news(known)
        self._over = True
        if (ending := ending_of(known)) is not None:
            self._report(ending)
        else:
            self._node.outbox.put(changes=[RunEnded(self.allocation_id)])
        self._node.checkpoint_upload.background(self._forget())
        await asyncio.to_thread(self._run_objects.release)
        await self._release_sources()
        await asyncio.to_thread(self._node.isolation.release, self.allocation_id)

    async def recover(self, *, started: bool) -> None:
        """Put on record the reports of processes that ended while there was no agent.

        Args:
            started: whether it is on record that the run began.
        """
        self._over, self._started = True, started
        self._run_objects.recover()
        if await self.trial_session.recover(self._folder):
            await self._run_objects.finish(None, broken=False)
        self._event_buffer.close()
        self._node.outbox.put(changes=[RunEnded(self.allocation_id)])

    def ask(
        self, how: Withdrawal, reason: str = "", *, machine: bool = False, final: bool = False
    ) -> None:
        """Stop the run, by request of the scheduler.

        Args:
            how: by a request to exit, or by killing it.
            reason: what failed on another agent, where that is why.
            machine: whether that was a failure of its machine.
            final: whether the search stopped the trial.
        """
        if not self._stop_request.ask(how, reason, machine=machine):
            return
        if not self._launched:
            if self._preparation is not None:
                self._preparation.cancel()
        elif how == "kill":
            self._run_objects.hurry()
            self._termination.kill(reason or "killed, as asked")
        else:
            self._ask_to_leave(final=final)
        self._save()

    def leave(self, grace_period: GracePeriod) -> None:
        """Stop the launched run because the agent leaves."""
        assert self._launched
        self._stop_request.leave()
        asyncio.get_running_loop().call_later(sum(grace_period), self._run_objects.hurry)
        if self._stop_request.asked != "kill":
            self._ask_to_leave(grace_period.leave_s)

    def _ask_to_leave(self, within_s: float = math.inf, *, final: bool = False) -> None:
        grace_s = grace_of(self._spec, self._node.settings.grace_s_max)
        said = self.trial_session
        self._termination.ask(
            min(grace_s, within_s), said.connections, spoke=said.spoke, final=final
        )

    async def _forget(self) -> None:
        """Forget the processes, once it is on record how they ended."""
        await self._node.outbox.written()
        for member in self._process_group.members:
            self._node.fork_servers.forget(member.name)

    def give_up(self) -> None:
        """End the run after an error of the agent's own."""
        self._over = True
        if self._launched:
            self._termination.kill("killed after an error inside the agent")
        self._node.checkpoint_upload.background(self._release_sources())
        self._node.checkpoint_upload.background(self._forget())
        self._report(Ending("failed", None, None, "an error inside the agent; see its log"))

    async def _release_sources(self) -> None:
        """Delete the files with secrets, and release the working folder.

        In this order: an agent that dies in between finds the run in its folder, and with it the
        files (`remove_files_left`).
        """
        for place in self._places:
            folder = self._secrets_folder(place.rank)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await self._node.sources.release(self.allocation_id)

    async def _live(self) -> None:
        """Prepare, launch, and wait until all processes have ended."""
        stop, known = self._stop_request, self._known
        launches = None
        if not self._resumed:
            launches = await self._launches()
            if stop.asked is not None or launches is None:
                known.elsewhere = stop.reason
                return
        for member in self._process_group.members:
            member.listen(self._event_buffer)
        self._launched = True
        if launches is None:
            self._node.checkpoint_upload.background(self._keep_printed())
        else:
            self._save()
            if self._node.settings.unattended_s:
                await self._node.outbox.written()
        try:
            known.lost = not await self._process(launches)
            await self.trial_session.ended(self._node, self._process_group.members, self._folder)
        finally:
            self._process_group.close()
            self.trial_session.abort()
        if not known.lost:
            self._note_exits()

    async def _launches(self) -> list[Launch] | None:
        """Return what to launch, None if the run is to stop before."""
        if self._stop_request.asked is not None:
            return None
        self._preparation = asyncio.create_task(self._prepare())
        try:
            return await self._preparation
        except asyncio.CancelledError:
            if self._stop_request.asked is None:
                raise
            return None

    def _resume(self, saved: SavedRun) -> None:
        """Continue a run that an earlier session of the agent launched."""
        self._launched, self._started = True, saved.started
        self._node.sources.hold(self.allocation_id)
        if saved.asked is not None:
            self._stop_request.ask(saved.asked, saved.reason, machine=saved.machine)
        self._node.isolation.resume(self.allocation_id, saved.user)
        self._run_objects.resume(self._node.isolation, saved.under_way)
        self._watchdog.steps = saved.steps
        self.trial_session.spoke = saved.spoke
        self._termination.resume(saved.conduct, saved.leave_at_ms, final=saved.final)
        self._node.checkpoint_upload.background(self._provide())

    async def _keep_printed(self) -> None:
        """Put on record what the processes printed without an agent; then let it be deleted."""
        self._event_buffer.flush()
        await self._node.outbox.written()
        for member in self._process_group.members:
            self._node.fork_servers.stored(member.name)

    async def _provide(self) -> None:
        """Keep the data in the cache that a resumed run uses, and go on filling it."""
        try:
            self._data = await self._node.provisioning.open(
                self._spec.config, self._folder, self._tell
            )
        except (RungError, OSError) as error:
            self._warn(f"the run's data may be evicted from the cache while it runs: {error}")
        if self._over:
            self._data.close()

    async def _arrived(self) -> None:
        await self._data.arrived()

    def _changes(self) -> list[Change]:
        """Return the changes that save the run for the next session of the agent."""
        if self._over or not self._node.settings.unattended_s:
            return []
        stop, termination = self._stop_request, self._termination
        saved = SavedRun(
            granted=self._granted,
            share=self._share,
            token=self.trial_session.token,
            since=self._since,
            announced=self._rendezvous.announced,
            private_key=self._rendezvous.private_key,
            user=self._node.isolation.user_of(self.allocation_id) if self._launched else None,
            processes=[member.name for member in self._process_group.members],
            launched=self._launched,
            started=self._started,
            spoke=self.trial_session.spoke,
            asked=stop.asked,
            reason=stop.reason,
            machine=stop.machine,
            conduct=termination.conduct,
            leave_at_ms=termination.leave_at_ms,
            final=termination.final,
            steps=self._watchdog.steps,
            under_way=self._run_objects.under_way,
        )
        return [saved.change()]

    def _save(self) -> None:
        """Save the run for the next session of the agent."""
        if changes := self._changes():
            self._node.outbox.put(changes=changes)

    def _send(self, message: FromAgent) -> None:
        self.trial_session.send(message)

    @property
    def _folder(self) -> Path:
        return self._node.sources.folder_of(self.allocation_id)

    def _note_exits(self) -> None:
        """Note how the processes ended, for the record and in the run's log."""
        stop, known = self._stop_request, self._known
        known.exits = self._process_group.exits()
        known.stopped_by = frozenset(self._process_group.stopped_by)
        known.conduct = self._termination.conduct
        killed = any(end.exited.signal == signal.SIGKILL for end in known.exits)
        known.oom_killed = killed and self._watchdog.oom_killed
        known.elsewhere = stop.reason
        ending = ending_of(known)
        assert ending is not None, "only a lost run has no ending here"
        level: Level = "error" if ending.outcome == "failed" else "info"
        if ending.message:
            self._event_buffer.note(level, ending.message, self._rank)
        if ending.outcome == "finished" and (early := self._before_its_length()):
            self._warn(early)
        gone = ending.outcome in {"preempted", "killed"} or known.conduct.sent_sigterm
        known.lost = stop.alone and gone

    def _before_its_length(self) -> str:
        """Return a warning if the script ended before its length; empty if that is not known."""
        length, at = self._spec.length, self.trial_session.validated_at
        if length is None or not self._chief or (at is None and self._resumed):
            return ""
        if at is not None and at >= length:
            return ""
        where = "without a validation" if at is None else f"at {at:g}, by its last validation"
        wanted = f"its length in {self._spec.time_metric} is {length}"
        return f"the script ended by itself, with exit code 0, {where}; {wanted}"

    async def _upload(self) -> None:
        """Return once the run's checkpoints are uploaded, or cannot be."""
        stop, known = self._stop_request, self._known
        ending = ending_of(known)
        broken = ending is None or not ending.well
        within_s = self._node.settings.leave_s if ending is None and not stop.leaving else None
        await self._run_objects.finish(within_s, broken=broken and not self._gang)
        known.not_uploaded = self._run_objects.problem
        if stop.alone and self._run_objects.pending:
            known.lost = True  # otherwise the checkpoints under way would not count

    async def _check_disk(self) -> None:
        """Note whether a failure is the machine's disk's."""
        stop, known, suspension = self._stop_request, self._known, self._node.suspension
        ending = ending_of(known)
        if ending is not None and ending.well:
            suspension.run_succeeded()
        if ending is None or ending.outcome != "failed" or stop.reason:
            return
        size = self._run_objects.newest_bytes
        fault = await suspension.machine_fault(ending.message, self._folder, size)
        if fault is None:
            return
        known.disk = fault.reason
        text = "the run failed because of its machine, which is not counted as a restart"
        self._event_buffer.note("error", f"{text}: {fault.reason}", self._rank)
        with contextlib.suppress(TimeoutError):
            wait_s = min(fault.wait_s, DISK_WAIT_S) if self._gang else fault.wait_s
            async with asyncio.timeout(wait_s):
                await stop.over()

    def _warn(self, text: str) -> None:
        self._event_buffer.note("warning", text, self._rank)

    def _tell(self, text: str) -> None:
        self._event_buffer.note("info", text, self._rank)

    async def _prepare(self) -> list[Launch]:
        node, spec = self._node, self._spec
        if self._unusable is not None:
            raise self._unusable
        if node.suspension.reason is not None:
            self._warn(f"the run waits for the agent's disk: {node.suspension.reason}")
        await node.suspension.over()
        self._run_objects.open()
        await node.sources.take(self.allocation_id)
        prepare = partial(node.sources.prepare, self.allocation_id, spec.code_digest)
        source = await node.checkpoint_upload.retry("the code", self._warn, prepare)
        if spec.run > 1 and self._chief and not source.kept:
            self._tell(_NOT_KEPT)
        self._data = await node.provisioning.open(
            spec.config, source.folder, self._tell, _ROOM_S if self._gang else math.inf
        )
        rendezvous_info = await self._rendezvous.join(self._tell)
        view = await asyncio.to_thread(self._view, source.folder)
        user = node.isolation.user_of(self.allocation_id)
        launches = []
        for member, place in zip(self._process_group.members, self._places, strict=True):
            token = self.trial_session.token
            unattended_s = node.settings.unattended_s
            identity = Identity(
                member.name, self.allocation_id, token, place, node.socket, unattended_s
            )
            network = network_of(self._wanted, place, rendezvous_info, node.settings.interface)
            launch = launch_of(
                self._opened, identity, self._slots, node.slots, source.folder, network, view, user
            )
            launch = structs.replace(launch, groups=list(node.isolation.groups))
            launch.environment.update(self._data.variables)
            launch.environment.update(self._secrets.variables)
            if self._secrets.files:
                folder = str(self._secrets_folder(place.rank))
                launch = structs.replace(
                    launch, secrets_folder=folder, secrets=dict(self._secrets.files)
                )
                launch.environment[SECRETS_VARIABLE] = folder
            launches.append(launch)
        self._frameworks = source.frameworks and launches[0].command.how != "execute"
        await node.fork_servers.ready(frameworks=self._frameworks)
        return launches

    def _view(self, folder: Path) -> View | None:
        """Create the run's folders, and return its file system view."""
        node = self._node
        own, readable = self._run_objects.prepare(node.isolation)
        node.isolation.chown(folder, self.allocation_id)
        data = [Path(path) for path in self._data.variables.values()]
        return node.isolation.view(
            [folder, node.socket.parent, *own],
            [*readable, node.provisioning.folder.resolve()],
            data,
        )

    def _welcome(self, rank: int) -> Welcome:
        """Return the first message to a process: one of the run's slots, or all if it is alone."""
        slots, local = self._slots, rank - self._rank
        if len(self._places) > 1:
            slots = slots[local : local + 1] if local >= 0 else []
        run_objects = self._run_objects
        return Welcome(
            self._spec,
            self._node.agent_id,
            run_objects.url,
            slots,
            staged=run_objects.staged,
            within=run_objects.within,
            unattended_s=self._node.settings.unattended_s,
            buffer=str(self._folder),
            secrets=list(self._secrets.values),
        )

    @property
    def _opened(self) -> RunSpec:
        """The run with its secrets in the configuration, which goes into no file and no event."""
        if not self._secrets.values:
            return self._spec
        return structs.replace(self._spec, config=self._secrets.opened(self._spec.config))

    def _secrets_folder(self, rank: int) -> Path:
        """Return where a process of the run keeps its secret files."""
        return files_folder(self.allocation_id, self.trial_session.token[:16], rank)

    async def _process(self, launches: list[Launch] | None) -> bool:
        """Launch the processes, and wait until they have ended; return False if they were lost."""
        living = asyncio.create_task(
            self._process_group.run(
                launches,
                self._termination,
                frameworks=self._frameworks,
                begun=self._note_start,
            )
        )
        try:
            await self._process_group.begun.wait()
            async with self._watchdog.over(
                self._process_group.mains,
                self._folder,
                self._slots,
                self._arrived,
                self._run_objects,
            ):
                return await living
        finally:
            living.cancel()

    def _note_start(self) -> None:
        """Record `TrialStarted`, before any other fact of the run."""
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
                    self._event_buffer.put(started, changes=self._changes())
            else:
                self._save()

    def _report(self, ending: Ending) -> None:
        node = self._node
        ending = ending._replace(message=self._masked.text(ending.message))
        broken = ending.outcome in {"failed", "invalid_hp"} and not self._stop_request.reason
        steps = self._watchdog.steps
        facts = facts_of(
            ending,
            self._spec,
            node.agent_id,
            pool=node.settings.pool,
            incarnation=self._incarnation,
            failed=ending.message or "failed" if broken and self._gang else "",
            steps=steps,
            # Only the first agent knows steps; two faults are the same one at the same step.
            comparable=self._chief or steps is not None,
            under_way=self._run_objects.under_way,
        )
        node.outbox.put(
            *(facts if self._chief or broken else facts[1:]),
            changes=[RunEnded(self.allocation_id)],
        )


def log_bytes_of(granted: AllocationGranted, most: int) -> int:
    """Return how much of a run's log each of its agents stores: an equal part of the limit.

    Args:
        granted: the run's allocation.
        most: the installation's limit for a run.
    """
    asked = (granted.spec.config.get("logs") or {}).get("max_bytes") or most
    return max(MIN_BYTES, min(asked, most) // len(granted.shares))
