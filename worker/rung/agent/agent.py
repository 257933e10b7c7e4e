"""The agent of one node: joins its pool, runs what it is granted, and leaves.

    start       lock the folder; kill processes that an earlier session left behind; publish its
                outbox; join with a new incarnation
    serve       follow the placements of its pool: start what is granted to this incarnation,
                stop what is signaled or lost; send heartbeats
    rejoin      the fork server died, and all runs with it: their reports are published, then a
                join with a new incarnation has the scheduler record them as lost; the same when
                the failure detector has recorded the agent as lost: its runs are killed, because
                they were granted to other agents
    displaced   the scheduler refused the join, or a copy of the agent took its place: it offers
                nothing until the id is free, and then joins above the incarnation on record
    leave       trials and whole gangs get some seconds to checkpoint; then `AgentLeft` has the
                scheduler start elsewhere what still ran, without counting a failure
    abandon     the process that started the agent is gone: stop at once; kill everything, unless
                trials may be unattended

A grant can only follow the join that offered the slots, so placements are read from the end that
they have before the join is written; grants for other incarnations are ignored.
"""

import asyncio
import contextlib
import os
import secrets
import socket
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

import structlog
from msgspec import structs
from structlog.contextvars import bound_contextvars

from rung.agent.agent_folder import AgentRefused, SocketFolder, lock_folder
from rung.agent.forkserver.client import Options
from rung.agent.forkserver.orphans import kill_marked
from rung.agent.forkserver.supervisor import ForkServers, run_of
from rung.agent.isolation.isolation import Isolation, isolation_of
from rung.agent.membership.identity import Displaced, Identity
from rung.agent.membership.membership import Membership
from rung.agent.membership.placements import Placement, Placements
from rung.agent.membership.pool_facts import PoolFacts
from rung.agent.membership.spot_notice import notice_to
from rung.agent.membership.suspension import Suspension
from rung.agent.monitoring.agent_metrics import measured
from rung.agent.node import Node
from rung.agent.objects.checkpoint_upload import CheckpointUpload
from rung.agent.objects.data_provisioning import DataProvisioning, hidden_variables
from rung.agent.objects.run_secrets import (
    HIDDEN_VARIABLES,
    RunSecrets,
    open_secrets,
    remove_files_left,
)
from rung.agent.objects.source_folder import CodeUnusable, SourceFolder
from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.outbox_file import Marked, RunEnded
from rung.agent.outbox.publisher import Publisher
from rung.agent.rendezvous.rendezvous import GangAddresses
from rung.agent.run.best_validations import BestValidations
from rung.agent.run.ipc_server import IpcServer
from rung.agent.run.run import Run
from rung.agent.run.saved_run import SavedRun, saved_run
from rung.agent.run.termination import ASKED_BY, GracePeriod, grace_period_of
from rung.agent.run.trial_session import TrialSession
from rung.agent.settings import Settings
from rung.agent.slots import detect
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationSignaled,
    JoinRefused,
)
from rung.events.metric import LogsDropped
from rung.events.trial import run_of as trial_run_of
from rung.ledger import Ledger
from rung.secrets.master_key import MasterKey
from rung.storage import FolderStore, ObjectError, ObjectStore, open_store
from rung.storage.key import INCOMING

_BACKLOG_S: Final = 30.0
_PREDECESSOR_S: Final = 10.0
"""How long to wait for the previous agent process to end."""
_POSITIONS_S: Final = 60.0
_STUCK_S: Final = 60.0
"""How long an agent that leaves waits for runs with processes that do not end."""
_PLACEMENTS: Final = "placements"
_POOL_FACTS: Final = "pool_facts"
"""Marks of the positions up to which the ledger was read."""
_LEFT: Final = "left"
"""The mark of a session that ended in good order: the number of its last fact."""

_log = structlog.get_logger()


class Agent:
    """One session of an agent."""

    def __init__(
        self, settings: Settings, ledger: Ledger, secrets_key: MasterKey | None = None
    ) -> None:
        """Take its parts; `secrets_key` decrypts the secrets of experiments."""
        self._secrets_key = secrets_key
        self._settings = settings
        folder = self._folder = settings.folder.absolute()
        self._slots = detect(settings.slots)
        self._outbox = Outbox(folder / "spool.db")
        self._publisher = Publisher(self._outbox, ledger)
        self._best_validations = BestValidations(ledger, self._outbox, self._publisher)
        self._placements = Placements(ledger, settings.pool, self._handle)
        self._gang_addresses = GangAddresses()
        self._pool_facts = PoolFacts(
            ledger,
            settings.pool,
            self._on_recorded_lost,
            self._gang_addresses.take,
            self._on_member_fact,
        )
        self._identity = Identity(self._outbox, str(folder))
        store = open_store(settings.objects_url)
        self._checkpoint_upload = CheckpointUpload(folder, store, self._outbox)
        self._hidden: Final = [folder, *self._checkpoint_upload.folders(), *settings.hide]
        self._provisioning = DataProvisioning(
            settings.cache or folder / "data",
            settings.cache_bytes,
            settings.objects_url,
            hidden=self._hidden,
        )
        written = _written_to(folder, store, self._provisioning.folder)
        self._suspension = Suspension(
            written,
            self._outbox,
            self._on_suspension,
            hidden=self._hidden,
            checkpoints=[path for path in written if path != self._provisioning.folder],
        )
        self._sources = SourceFolder(folder, self._checkpoint_upload.store)
        self._socket = SocketFolder(folder)
        self._membership = Membership(settings, ledger, self._outbox, self._slots)
        self._runs: dict[str, Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._fetching: dict[str, asyncio.Task[tuple[dict[str, Any], RunSecrets]]] = {}
        """Allocation id → the download of its configuration and secrets."""
        self._asked: dict[str, list[AllocationSignaled | AllocationLost]] = {}
        """Allocation id → requests to stop that came before its run was made."""
        self._ipc_server = IpcServer(self._outbox, self._session_of, self._run_with)
        options = Options(
            folder,
            cuda=any(slot.kind == "cuda" for slot in self._slots),
            hidden=self._checkpoint_upload.hidden_variables()
            | hidden_variables()
            | HIDDEN_VARIABLES,
            umask=settings.trial_umask,
            unattended_s=settings.unattended_s,
        )
        self._fork_servers = ForkServers(
            options,
            self._outbox,
            cold=settings.cold,
            lost=self._renew,
            idle_s=settings.frameworks_idle_s,
        )
        self._saved: dict[str, SavedRun] = {}
        """Allocation id → a run that this session takes over from an earlier one."""
        self._lost: dict[str, SavedRun] = {}
        """Allocation id → a run of an earlier session whose processes are gone; they may have
        left reports that are not on record."""
        self._leaving = False
        """Whether the runs end with this session."""
        self._renewing = asyncio.Lock()
        self._displaced: Displaced | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._offering: int | None = None
        """The incarnation whose grants are carried out; None while the agent has not joined."""
        self._node: Node

    async def run(self, stop: asyncio.Event, gone: asyncio.Event) -> None:
        """Run until `stop` (leave in good order) or `gone` (stop at once).

        `gone` leaves trials to the next session where they may be unattended, and kills them
        otherwise. `stop` leaves them to it where they are to be kept, and otherwise lets them
        checkpoint and ends them.

        Raises:
            AgentRefused: another agent uses the folder, or it cannot be written.
            LedgerError: one that retries do not cure.
        """
        within_s = _PREDECESSOR_S if self._settings.unattended_s else 0.0
        lock = await asyncio.to_thread(lock_folder, self._folder, within_s)
        try:
            await self._open()
            try:
                with measured(self._outbox, self._runs, self._suspension):
                    await self._live(stop, gone)
            finally:
                await self._outbox.close()
                if self._leaving or not self._settings.unattended_s:
                    self._socket.close()
        finally:
            os.close(lock)

    async def unready(self) -> str | None:
        """Return why no run can be granted to this agent now, None if one can."""
        if self._displaced is not None:
            return self._displaced.reason
        if self._offering is None:
            return "has not joined its pool"
        return self._suspension.reason or self._publisher.refused

    async def _open(self) -> None:
        held: frozenset[str] = frozenset()
        if self._settings.unattended_s:
            held = await self._fork_servers.adopt()
        spared = self._fork_servers.pids
        if killed := await asyncio.to_thread(kill_marked, self._folder, spared):
            _log.warning("killed what an earlier agent left behind", processes=killed)
        isolation = await self._isolation()
        self._membership.isolation = str(isolation)
        died_ms = self._outbox.written_ms()
        self._outbox.open(self._settings.agent_id, socket.gethostname())
        await self._adopt(held)
        try:
            left = await asyncio.to_thread(self._sources.left)
            kept = [name for name, saved in self._saved.items() if saved.launched]
            if self._outbox.mark(_LEFT) != str(self._outbox.last):  # it was killed
                for allocation_id in left:
                    self._mark_missing(allocation_id, died_ms)
            left = [name for name in left if name not in kept]
            await asyncio.to_thread(remove_files_left, left)
            await asyncio.to_thread(self._sources.open, [*kept, *self._lost])
            await asyncio.to_thread(self._checkpoint_upload.release, left)
            path = self._socket.open(keep=bool(kept))
            await asyncio.to_thread(isolation.open_folders, self._folder)
        except (OSError, ObjectError) as error:
            await self._outbox.close()
            raise AgentRefused(f"the agent's folder {self._folder}: {error}") from error
        await self._ipc_server.open(path)
        if isolation.mode == "users":
            path.chmod(0o666)  # the token and the peer's credentials identify the run
            path.parent.chmod(0o711)
        self._node = Node(
            self._settings,
            self._outbox.agent_id,
            self._outbox,
            self._fork_servers,
            self._sources,
            self._checkpoint_upload,
            self._provisioning,
            self._ipc_server,
            path,
            self._slots,
            self._gang_addresses,
            self._suspension,
            isolation,
            self._best_validations,
            taken=self._outbox.taken(),
        )
        for saved in self._lost.values():
            await self._recover(saved)

    async def _adopt(self, held: frozenset[str]) -> None:
        """Take over the runs of an earlier session: all of them, or end them all.

        Runs that were ended are recorded as lost by the scheduler once this session joins. What
        they reported without an agent is put on record before.

        Args:
            held: the processes that fork servers have handed over.
        """
        runs = {name: saved_run(data) for name, data in self._outbox.runs().items()}
        found = {name: saved for name, saved in runs.items() if saved is not None}
        left: dict[str, SavedRun] = {}
        halves: set[str] = set()
        whole = len(found) == len(runs) and self._membership.joined_before()
        for name, saved in found.items():
            here = {each for each in held if run_of(each) == name}
            if saved.launched and not saved.started and here != set(saved.processes):
                saved = structs.replace(saved, launched=False)  # noqa: PLW2901 - not as a whole
                halves |= here
            whole = whole and (not saved.launched or here == set(saved.processes))
            left[name] = saved
        if left and whole and self._socket.kept:
            self._saved = left
            await self._fork_servers.end(halves)
            self._fork_servers.forget_others(left)
            # The others of a gang announced their addresses after the cause of the grant.
            gangs = [it.since for it in left.values() if not it.launched]
            self._pool_facts.resume_at(min([int(self._outbox.mark(_POOL_FACTS) or 0), *gangs]))
            return
        if held:
            _log.warning("killing the processes of an earlier agent", processes=len(held))
            await self._fork_servers.clear()
        self._lost = {name: saved for name, saved in found.items() if saved.launched}
        if others := [name for name in runs if name not in self._lost]:
            self._outbox.put(changes=[RunEnded(name) for name in others])

    async def _recover(self, saved: SavedRun) -> None:
        """Put on record what the processes of a lost run reported while there was no agent."""
        name = saved.granted.allocation_id
        try:
            run = Run(
                self._node,
                saved.granted,
                saved.share,
                self._outbox.incarnation,
                saved=structs.replace(saved, launched=False),
            )
            await run.recover(started=saved.started)
        except Exception:  # noqa: BLE001 - one run's trouble must not become another's
            _log.exception("the reports of a lost run could not be recovered", allocation=name)
            self._outbox.put(changes=[RunEnded(name)])
        await asyncio.to_thread(self._sources.discard, name)

    def _mark_missing(self, allocation_id: str, died_ms: int) -> None:
        """Put on record that lines may be missing at the end of a run that the agent left."""
        if (found := trial_run_of(allocation_id)) is None:
            return
        trial_id, run = found
        self._outbox.put(
            LogsDropped(
                experiment_id=trial_id.rpartition(".")[0],
                trial_id=trial_id,
                run=run,
                rank=0,
                reason="killed",
                time_ms=died_ms,
                lines=0,
                size_bytes=0,
            )
        )

    async def _isolation(self) -> Isolation:
        """Choose how runs are isolated.

        Raises:
            IsolationRefused: the requested isolation does not work here.
        """
        settings = self._settings
        found = await asyncio.to_thread(
            isolation_of,
            settings.isolation,
            folder=self._folder,
            users=settings.trial_uids,
            groups=settings.trial_groups,
            hidden=self._hidden,
            cluster=self._checkpoint_upload.staged,
        )
        (_log.warning if found.mode == "none" else _log.info)("isolation", trials=str(found))
        return found

    async def _live(self, stop: asyncio.Event, gone: asyncio.Event) -> None:
        publisher = asyncio.create_task(self._publisher.run())
        fork_servers = asyncio.create_task(self._fork_servers.run())
        work = asyncio.create_task(self._work())
        heartbeats = asyncio.create_task(self._membership.send_heartbeats(self._runs))
        facts = asyncio.create_task(self._pool_facts.follow())
        taken = asyncio.create_task(self._drain_on_notice())
        suspension = asyncio.create_task(self._suspension.run())
        stopped, abandoned = (asyncio.create_task(event.wait()) for event in (stop, gone))
        positions = asyncio.create_task(self._note_positions())
        always = (publisher, fork_servers, work, heartbeats, facts, suspension, positions)
        try:
            ends = (*always, stopped, abandoned, taken)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in always:
                if task.done():
                    task.result()  # raises: none of them ends by itself
            if not gone.is_set() and (taken.done() or not self._settings.keep_trials):
                self._leaving = True
                if self._offering is None:  # not joined yet, and no longer needed
                    await _end(work)
                grace_period = taken.result() if taken.done() else await self._drain_on_stop()
                self._offering = None
                await self._leave(grace_period, fork_servers, abandoned)
            if taken.done():
                _log.info("left the pool; waiting for the machine to end")
                await asyncio.wait([stopped, abandoned], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._settings.unattended_s and not self._leaving:
                self._fork_servers.detach()
            if self._rejoining is not None:
                await _end(self._rejoining)
            await _end(
                work,
                heartbeats,
                facts,
                positions,
                stopped,
                abandoned,
                taken,
                *self._tasks.values(),
            )
            await _end(fork_servers, suspension)
            await self._provisioning.close()
            await self._checkpoint_upload.close()
            await _end(publisher)
            await self._ipc_server.close()
            if not gone.is_set() or self._settings.unattended_s:
                self._outbox.put(
                    changes=[*self._positions(), Marked(_LEFT, str(self._outbox.last))]
                )

    async def _work(self) -> None:
        """Join, then carry out the placements, until cancelled."""
        if self._saved:
            await self._resume_session()
            return
        await self._checkpoint_upload.upload_backlog(_BACKLOG_S)
        await self._publisher.empty()
        await self._placements.seek_to_end()
        await self._pool_facts.following.wait()
        await self._join()
        await self._placements.follow()

    async def _resume_session(self) -> None:
        """Resume the work of an earlier session, under its incarnation, until cancelled."""
        saved, self._saved = self._saved, {}
        self._placements.resume_at(self._outbox.mark(_PLACEMENTS) or "0")
        self._offering = self._membership.resume_incarnation()
        if self._suspension.reason is not None:
            self._membership.suspend(self._suspension.reason)
        for name, each in saved.items():
            self._tasks[name] = asyncio.create_task(
                self._carry_out(each.granted, each.share, each)
            )
        backlog = self._checkpoint_upload.upload_backlog(_BACKLOG_S, list(saved))
        await asyncio.gather(backlog, self._placements.follow())

    def _positions(self) -> list[Marked]:
        """Return the marks of the positions up to which this session has read the ledger."""
        return [
            Marked(_PLACEMENTS, self._placements.mark),
            Marked(_POOL_FACTS, str(self._pool_facts.position)),
        ]

    async def _note_positions(self) -> None:
        """Save these positions now and then, so that the next session goes on from them."""
        noted = None
        while True:
            await asyncio.sleep(_POSITIONS_S)
            positions = self._positions()
            if self._offering is not None and positions != noted:
                noted = positions
                self._outbox.put(changes=positions)

    async def _join(self, above: int = 0) -> None:
        self._identity.joining()
        self._offering = await self._membership.join(above)
        self._outbox.put(changes=self._positions())
        self._displaced = None
        if self._suspension.reason is not None:
            self._membership.suspend(self._suspension.reason)

    def _on_suspension(self, reason: str | None) -> None:
        if self._offering is None:
            return
        if reason is None:
            self._membership.resume()
        else:
            self._membership.suspend(reason)

    def _session_of(self, allocation_id: str) -> TrialSession | None:
        """Return what receives the messages of a run's processes."""
        run = self._runs.get(allocation_id)
        return run.trial_session if run is not None else None

    def _run_with(self, pid: int) -> str | None:
        """Return the run that a process is known to belong to."""
        return self._fork_servers.run_with(pid)

    def _handle(self, decision: Placement) -> None:
        match decision:
            case AllocationGranted():
                self._start(decision)
            case AllocationSignaled():
                if self._outbox.agent_id in decision.agents:
                    self._ask(decision)
            case AllocationLost():
                self._ask(decision)
            case AllocationDropped():
                pass
            case JoinRefused():
                self._displace(self._identity.refused(decision))
            case _:
                assert_never(decision)

    def _start(self, granted: AllocationGranted) -> None:
        own = (self._outbox.agent_id, self._offering)
        for number, share in enumerate(granted.shares):
            if (share.agent_id, share.incarnation) == own:
                name = granted.allocation_id
                assert name not in self._tasks, "an allocation is granted once"
                saved = SavedRun(
                    granted=granted,
                    share=number,
                    token=secrets.token_hex(16),
                    since=self._placements.cause,
                )
                if self._settings.unattended_s:
                    self._outbox.put(changes=[saved.change(), *self._positions()])
                self._tasks[name] = asyncio.create_task(self._carry_out(granted, number, saved))

    def _ask(self, decision: AllocationSignaled | AllocationLost) -> None:
        """Stop a run; one whose configuration is still being fetched never starts."""
        name = decision.allocation_id
        if run := self._runs.get(name):
            if isinstance(decision, AllocationLost):
                run.ask("kill")
            else:
                run.ask(
                    decision.how, decision.reason, machine=decision.machine, final=decision.final
                )
        elif name in self._tasks:
            self._asked.setdefault(name, []).append(decision)
            if fetch := self._fetching.get(name):
                fetch.cancel()

    async def _carry_out(self, granted: AllocationGranted, number: int, saved: SavedRun) -> None:
        name, spec = granted.allocation_id, granted.spec
        try:
            with bound_contextvars(
                allocation=name, experiment=spec.experiment_id, trial=spec.trial_id
            ):
                _log.info("run begins")
                run = self._runs[name] = await self._run_of(granted, number, saved)
                for decision in self._asked.pop(name, ()):
                    self._ask(decision)
                await run.carry_out()
                _log.info("run is over")
        except Exception:  # noqa: BLE001 - one run's trouble must not become another's
            _log.exception("a run failed inside the agent", allocation=name)
            if name in self._runs:
                self._runs[name].give_up()
        finally:
            self._runs.pop(name, None)
            self._asked.pop(name, None)
            del self._tasks[name]

    async def _run_of(self, granted: AllocationGranted, number: int, saved: SavedRun) -> Run:
        """Return the run of a grant, once its configuration is fetched or it is to stop."""
        unusable: Exception | None = None
        opened = RunSecrets()
        digest = granted.spec.config_digest
        if digest is not None:
            try:
                config, opened = await self._configuration(granted.allocation_id, digest)
                spec = structs.replace(granted.spec, config=config)
                granted = structs.replace(granted, spec=spec)
            except Exception as error:  # noqa: BLE001 - the run reports it as its own failure
                unusable = error
        share = granted.shares[number]
        return Run(self._node, granted, number, share.incarnation, unusable, saved, opened)

    async def _configuration(self, name: str, digest: str) -> tuple[dict[str, Any], RunSecrets]:
        """Return configuration and secrets of an allocation; retried while the store is away.

        Raises:
            CodeUnusable: it cannot be fetched, or the run is to stop.
            SecretError: a secret cannot be fetched or decrypted.
        """
        fetch = asyncio.create_task(self._fetched(digest))
        self._fetching[name] = fetch
        try:
            if name not in self._asked:
                await asyncio.wait([fetch])
        finally:
            fetch.cancel()
            del self._fetching[name]
        if not fetch.done() or fetch.cancelled():
            raise CodeUnusable("it was stopped before its configuration was fetched")
        return fetch.result()

    async def _fetched(self, digest: str) -> tuple[dict[str, Any], RunSecrets]:
        if not self._sources.has_configuration(digest):
            await self._suspension.over()
        read = partial(self._sources.configuration, digest)
        upload = self._checkpoint_upload
        config = await upload.retry("the configuration", _log.warning, read)
        decrypt = partial(open_secrets, config, upload.store, self._secrets_key)
        return config, await upload.retry("the secrets", _log.warning, decrypt)

    async def _renew(self) -> None:
        """After the death of the fork server: end its runs, join again."""
        async with self._renewing:
            offered, self._offering = self._offering, None
            await self._end_runs()
            if offered is not None:
                await self._join()

    def _on_member_fact(self, fact: AgentJoined | AgentLeft | AgentLost) -> None:
        self._displace(self._identity.see(fact))

    def _displace(self, displaced: Displaced | None) -> None:
        """Offer nothing more, if the agent has lost its place, until it may join again."""
        if displaced is None or self._offering is None:
            return
        say = _log.error if displaced.in_use else _log.warning
        say("not a member of the pool", reason=displaced.reason, known=displaced.known)
        self._displaced, self._offering = displaced, None
        self._membership.refused()
        self._kill_runs()
        self._rejoining = asyncio.create_task(self._rejoin(displaced))

    async def _rejoin(self, displaced: Displaced) -> None:
        if displaced.in_use:
            await self._identity.free(displaced.known)
        async with self._renewing:
            await self._end_runs()
            await self._join(above=displaced.known)

    async def _on_recorded_lost(self, lost: AgentLost) -> None:
        """Kill the runs, which were granted to other agents, and join again."""
        if (lost.agent_id, lost.incarnation) != (self._outbox.agent_id, self._offering):
            return
        _log.warning("recorded as lost; joining again", silent_ms=lost.silent_ms)
        self._kill_runs()
        await self._renew()

    def _kill_runs(self) -> None:
        """Kill the runs of an incarnation that is no longer the agent's."""
        for run in self._runs.values():
            run.ask("kill")
        for name in self._fetching:
            self._tasks[name].cancel()

    async def _end_runs(self) -> None:
        """Wait for the runs whose processes are gone; drop those that have none."""
        for allocation_id, task in self._tasks.items():
            run = self._runs.get(allocation_id)
            if run is None or not run.launched:
                task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _drain_on_notice(self) -> GracePeriod:
        """Have the agent drained when the cloud announces that it takes this machine back.

        The scheduler preempts the runs, on all agents of a gang, and grants this agent nothing
        new. Returns the remaining time, once the runs have ended or `ASKED_BY` of the time of
        the notice has passed.
        """
        settings = self._settings
        notice = await notice_to(settings.spot, settings.metadata_url, settings.spot_every_s)
        _log.warning("leaving", reason=notice.reason, seconds=notice.seconds)
        if self._displaced is None:
            await self._membership.drain(notice.reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(notice.seconds * ASKED_BY):
                while self._tasks:
                    await asyncio.wait(list(self._tasks.values()))
        return grace_period_of(notice.seconds, settings.leave_s)

    async def _drain_on_stop(self) -> GracePeriod:
        """Have the agent drained: the scheduler preempts whole gangs, one agent cannot."""
        if self._tasks:
            await self._membership.drain("the agent was told to stop")
        return GracePeriod(self._settings.leave_s, self._settings.leave_s)

    async def _leave(self, grace_period: GracePeriod, *shorter: asyncio.Task[Any]) -> None:
        """Let trials checkpoint, end them, and leave the pool; stop early if a task ends."""
        for run in self._runs.values():
            if run.launched:
                run.leave(grace_period)
        ended = asyncio.create_task(self._end_runs())
        await asyncio.wait(
            [ended, *shorter],
            timeout=sum(grace_period) + _STUCK_S,  # then the failure detector frees the slots
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not ended.done():
            ended.cancel()
            return
        self._membership.leave()
        await self._publisher.close()


def _written_to(folder: Path, store: ObjectStore, cache: Path) -> list[Path]:
    """Return the folders to which runs and the agent write."""
    objects = [store.root / INCOMING] if isinstance(store, FolderStore) else []
    return [folder, cache, *objects]


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
