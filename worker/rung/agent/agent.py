"""The agent of one node: joins, carries out grants, and leaves.

    start       take the folder; kill what an earlier life left behind; bring its spool to the
                ledger; join with a new incarnation
    live        follow the placements of its pool: start what is granted to this incarnation,
                stop what is signaled or lost; beat
    renewal     the warm parent died, and with it all runs: what they said goes to the ledger,
                then a join with a new incarnation tells the scheduler that they are lost; so too
                when the scheduler took the agent for lost: the runs are others' now, and end
    displaced   the scheduler refused the join, or a copy of the agent took its place: it offers
                nothing until the id is free, and joins then above the incarnation on record
    leave       trials and whole gangs may checkpoint for some seconds; then `AgentLeft` tells the
                scheduler that what still ran is lost, to start elsewhere, and is no failure
    abandon     whoever started the agent is gone: kill everything, stop at once

A grant can only follow the join that offered the slots, so placements are read from where they
end before the join is written; grants for other incarnations are none of ours.
"""

import asyncio
import contextlib
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

import structlog
from msgspec import structs
from structlog.contextvars import bound_contextvars

from rung.agent.config import Settings
from rung.agent.conversation import Conversation
from rung.agent.departure import ASKED_BY, Respite, respite_of
from rung.agent.depot import Depot
from rung.agent.drain import Drain
from rung.agent.endpoint import Endpoint
from rung.agent.folder_lock import AgentRefused, lock_folder
from rung.agent.gauge import measured
from rung.agent.isolation import Isolation, isolation_of
from rung.agent.leftovers import kill_marked
from rung.agent.meeting import Introductions
from rung.agent.membership import Displaced, Membership
from rung.agent.node import Node
from rung.agent.placements import Placement, Placements
from rung.agent.pool_facts import PoolFacts
from rung.agent.presence import Presence
from rung.agent.run import Run
from rung.agent.slots import detect
from rung.agent.socket_folder import SocketFolder
from rung.agent.source_folder import CodeUnusable, SourceFolder
from rung.agent.spool import Spool
from rung.agent.spot import notice_to
from rung.agent.starter import Starter
from rung.agent.supply import Supply, hidden_variables
from rung.agent.suspension import Suspension
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
from rung.events.trial import run_of
from rung.ledger import Ledger
from rung.storage import FolderStore, ObjectStore, open_store
from rung.storage.key import INCOMING

_BACKLOG_S: Final = 30.0

_log = structlog.get_logger()


class Agent:
    """One life of an agent."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._settings = settings
        folder = self._folder = settings.folder.absolute()
        self._slots = detect(settings.slots)
        self._spool = Spool(folder / "spool.db")
        self._drain = Drain(self._spool, ledger)
        self._placements = Placements(ledger, settings.pool, self._obey)
        self._introductions = Introductions()
        self._pool_facts = PoolFacts(
            ledger, settings.pool, self._taken_for_lost, self._introductions.hear, self._see
        )
        self._membership = Membership(self._spool, str(folder))
        store = open_store(settings.objects_url)
        self._depot = Depot(folder, store, self._spool)
        self._hidden: Final = [folder, *self._depot.folders(), *settings.hide]
        self._supply = Supply(
            settings.cache or folder / "data",
            settings.cache_bytes,
            settings.objects_url,
            hidden=self._hidden,
        )
        written = _written_to(folder, store, self._supply.folder)
        self._suspension = Suspension(
            written, self._spool, self._on_suspension, hidden=self._hidden
        )
        self._sources = SourceFolder(folder, self._depot.store)
        self._socket = SocketFolder(folder)
        self._presence = Presence(settings, ledger, self._spool, self._slots)
        self._runs: dict[str, Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._fetching: dict[str, asyncio.Task[dict[str, Any]]] = {}
        """Allocation id → its configuration, on its way."""
        self._asked: dict[str, list[AllocationSignaled | AllocationLost]] = {}
        """Allocation id → what the scheduler said of it meanwhile."""
        self._endpoint = Endpoint(self._spool, self._speaker, self._run_with)
        self._starter = Starter(
            folder,
            self._spool,
            cuda=any(slot.kind == "cuda" for slot in self._slots),
            cold=settings.cold,
            hidden=self._depot.hidden_variables() | hidden_variables(),
            umask=settings.trial_umask,
            lost=self._renew,
        )
        self._renewing = asyncio.Lock()
        self._displaced: Displaced | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._offering: int | None = None
        """The incarnation whose grants are carried out; None between two."""
        self._node: Node

    async def run(self, stop: asyncio.Event, gone: asyncio.Event) -> None:
        """Live until `stop` (leave in good order) or `gone` (kill everything, leave at once).

        Raises:
            AgentRefused: another agent uses the folder, or it cannot be written.
            LedgerError: one that does not pass by itself.
        """
        lock = lock_folder(self._folder)
        try:
            await self._open()
            try:
                with measured(self._spool, self._runs, self._suspension):
                    await self._live(stop, gone)
            finally:
                await self._spool.close()
                self._socket.close()
        finally:
            os.close(lock)

    async def unready(self) -> str | None:
        """Return why no run can be granted to it now, None if one can."""
        if self._displaced is not None:
            return self._displaced.reason
        if self._offering is None:
            return "has not joined its pool"
        return self._suspension.reason or self._drain.refused

    async def _open(self) -> None:
        if killed := await asyncio.to_thread(kill_marked, self._folder):
            _log.warning("killed what an earlier agent left behind", processes=killed)
        isolation = await self._isolation()
        self._presence.isolation = str(isolation)
        died_ms = self._spool.written_ms()
        self._spool.open(self._settings.agent_id, socket.gethostname())
        try:
            left = await asyncio.to_thread(self._sources.left)
            for allocation_id in left:
                self._mark_missing(allocation_id, died_ms)
            await asyncio.to_thread(self._sources.open)
            await asyncio.to_thread(self._depot.release, left)
            path = self._socket.open()
            await asyncio.to_thread(isolation.open_folders, self._folder)
        except OSError as error:
            await self._spool.close()
            raise AgentRefused(f"the agent's folder {self._folder}: {error}") from error
        await self._endpoint.open(path)
        if isolation.mode == "users":
            path.chmod(0o666)  # the token, and who speaks, say which run it is
            path.parent.chmod(0o711)
        self._node = Node(
            self._settings,
            self._spool.agent_id,
            self._spool,
            self._starter,
            self._sources,
            self._depot,
            self._supply,
            self._endpoint,
            path,
            self._slots,
            self._introductions,
            self._suspension,
            isolation,
        )

    def _mark_missing(self, allocation_id: str, died_ms: int) -> None:
        """Put on record that lines may be missing at the end of a run that the agent left."""
        if (found := run_of(allocation_id)) is None:
            return
        trial_id, run = found
        self._spool.put(
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
            IsolationRefused: as asked for it does not work here.
        """
        settings = self._settings
        found = await asyncio.to_thread(
            isolation_of,
            settings.isolation,
            folder=self._folder,
            users=settings.trial_uids,
            groups=settings.trial_groups,
            hidden=self._hidden,
            cluster=self._depot.staged,
        )
        (_log.warning if found.mode == "none" else _log.info)("isolation", trials=str(found))
        return found

    async def _live(self, stop: asyncio.Event, gone: asyncio.Event) -> None:
        drain = asyncio.create_task(self._drain.run())
        starter = asyncio.create_task(self._starter.run())
        work = asyncio.create_task(self._work())
        beat = asyncio.create_task(self._presence.beat(self._runs))
        facts = asyncio.create_task(self._pool_facts.follow())
        taken = asyncio.create_task(self._taken_away())
        suspension = asyncio.create_task(self._suspension.run())
        stopped, abandoned = (asyncio.create_task(event.wait()) for event in (stop, gone))
        always = (drain, starter, work, beat, facts, suspension)
        try:
            ends = (*always, stopped, abandoned, taken)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in always:
                if task.done():
                    task.result()  # raises: none of them ends by itself
            if not gone.is_set():
                if self._offering is None:  # so it has not joined; now it need not
                    await _end(work)
                respite = taken.result() if taken.done() else await self._told_to_stop()
                self._offering = None
                await self._leave(respite, starter, abandoned)
            if taken.done():
                _log.info("has left; waits for the machine's end")
                await asyncio.wait([stopped, abandoned], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._rejoining is not None:
                await _end(self._rejoining)
            await _end(work, beat, facts, stopped, abandoned, taken, *self._tasks.values())
            await _end(starter, suspension)
            await self._supply.close()
            await self._depot.close()
            await _end(drain)
            await self._endpoint.close()

    async def _work(self) -> None:
        """Join, then carry out what the placements say, until cancelled."""
        await self._depot.clear_backlog(_BACKLOG_S)
        await self._drain.empty()
        await self._placements.skip_to_the_end()
        await self._pool_facts.following.wait()
        await self._join()
        await self._placements.follow()

    async def _join(self, above: int = 0) -> None:
        self._membership.joining()
        self._offering = await self._presence.join(above)
        self._displaced = None
        if self._suspension.reason is not None:
            self._presence.suspend(self._suspension.reason)

    def _on_suspension(self, reason: str | None) -> None:
        if self._offering is None:
            return
        if reason is None:
            self._presence.resume()
        else:
            self._presence.suspend(reason)

    def _speaker(self, allocation_id: str) -> Conversation | None:
        """Return who hears the processes of a run."""
        run = self._runs.get(allocation_id)
        return run.conversation if run is not None else None

    def _run_with(self, pid: int) -> str | None:
        """Return the run that a process is known to belong to."""
        return self._starter.run_with(pid)

    def _obey(self, decision: Placement) -> None:
        match decision:
            case AllocationGranted():
                self._start(decision)
            case AllocationSignaled():
                if self._spool.agent_id in decision.agents:
                    self._ask(decision)
            case AllocationLost():
                self._ask(decision)
            case AllocationDropped():
                pass
            case JoinRefused():
                self._displace(self._membership.refused(decision))
            case _:
                assert_never(decision)

    def _start(self, granted: AllocationGranted) -> None:
        own = (self._spool.agent_id, self._offering)
        for number, share in enumerate(granted.shares):
            if (share.agent_id, share.incarnation) == own:
                name = granted.allocation_id
                assert name not in self._tasks, "an allocation is granted once"
                self._tasks[name] = asyncio.create_task(self._carry_out(granted, number))

    def _ask(self, decision: AllocationSignaled | AllocationLost) -> None:
        """Make a run stop; one whose configuration is being fetched stops before it starts."""
        name = decision.allocation_id
        if run := self._runs.get(name):
            if isinstance(decision, AllocationLost):
                run.ask("kill")
            else:
                run.ask(decision.how, decision.reason, machine=decision.machine)
        elif name in self._tasks:
            self._asked.setdefault(name, []).append(decision)
            if fetch := self._fetching.get(name):
                fetch.cancel()

    async def _carry_out(self, granted: AllocationGranted, number: int) -> None:
        name, spec = granted.allocation_id, granted.spec
        try:
            with bound_contextvars(
                allocation=name, experiment=spec.experiment_id, trial=spec.trial_id
            ):
                _log.info("run begins")
                run = self._runs[name] = await self._run_of(granted, number)
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

    async def _run_of(self, granted: AllocationGranted, number: int) -> Run:
        """Return the run of a grant, once its configuration is there or it is to stop."""
        unusable: Exception | None = None
        digest = granted.spec.config_digest
        if digest is not None:
            try:
                config = await self._configuration(granted.allocation_id, digest)
                spec = structs.replace(granted.spec, config=config)
                granted = structs.replace(granted, spec=spec)
            except Exception as error:  # noqa: BLE001 - the run reports it as its own failure
                unusable = error
        share = granted.shares[number]
        return Run(self._node, granted, number, share.incarnation, unusable)

    async def _configuration(self, name: str, digest: str) -> dict[str, Any]:
        """Return the configuration of an allocation, however long the object store is away.

        Raises:
            CodeUnusable: it cannot be had, or the run is to stop.
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
            raise CodeUnusable("it was to stop before its configuration was there")
        return fetch.result()

    async def _fetched(self, digest: str) -> dict[str, Any]:
        if not self._sources.has_configuration(digest):
            await self._suspension.over()
        read = partial(self._sources.configuration, digest)
        return await self._depot.patiently("the configuration", _log.warning, read)

    async def _renew(self) -> None:
        """After the death of the warm parent: end what it took along, join anew."""
        async with self._renewing:
            offered, self._offering = self._offering, None
            await self._end_runs()
            if offered is not None:
                await self._join()

    def _see(self, fact: AgentJoined | AgentLeft | AgentLost) -> None:
        self._displace(self._membership.see(fact))

    def _displace(self, displaced: Displaced | None) -> None:
        """Offer nothing more, if the agent has lost its place, until it may join again."""
        if displaced is None or self._offering is None:
            return
        say = _log.error if displaced.in_use else _log.warning
        say("not a member of the pool", reason=displaced.reason, known=displaced.known)
        self._displaced, self._offering = displaced, None
        self._presence.refused()
        self._kill_runs()
        self._rejoining = asyncio.create_task(self._rejoin(displaced))

    async def _rejoin(self, displaced: Displaced) -> None:
        if displaced.in_use:
            await self._membership.free(displaced.known)
        async with self._renewing:
            await self._end_runs()
            await self._join(above=displaced.known)

    async def _taken_for_lost(self, lost: AgentLost) -> None:
        """Offer the slots again; what still runs here was given to others."""
        if (lost.agent_id, lost.incarnation) != (self._spool.agent_id, self._offering):
            return
        _log.warning("taken for lost; joining anew", silent_ms=lost.silent_ms)
        self._kill_runs()
        await self._renew()

    def _kill_runs(self) -> None:
        """Kill what runs for an incarnation that is no longer the agent's."""
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

    async def _taken_away(self) -> Respite:
        """Have the agent drained when the cloud says that it takes this machine away.

        The scheduler asks the runs to yield, on all agents that a gang is on, and gives this one
        nothing new. Returns what time is left, once they have, or when it is time to go without.
        """
        settings = self._settings
        notice = await notice_to(settings.spot, settings.metadata_url, settings.spot_every_s)
        _log.warning("leaving", reason=notice.reason, seconds=notice.seconds)
        if self._displaced is None:
            await self._presence.drain(notice.reason)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(notice.seconds * ASKED_BY):
                while self._tasks:
                    await asyncio.wait(list(self._tasks.values()))
        return respite_of(notice.seconds, settings.leave_s)

    async def _told_to_stop(self) -> Respite:
        """Have the agent drained: only the agent of a gang's first process can ask the gang."""
        if self._tasks:
            await self._presence.drain("the agent was told to stop")
        return Respite(self._settings.leave_s, self._settings.leave_s)

    async def _leave(self, respite: Respite, *shorter: asyncio.Task[Any]) -> None:
        """Let trials checkpoint, end them, and say goodbye; or stop when a task ends before."""
        for run in self._runs.values():
            if run.launched:
                run.leave(respite)
        ended = asyncio.create_task(self._end_runs())
        await asyncio.wait([ended, *shorter], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            ended.cancel()
            return
        self._presence.leave()
        await self._drain.close()


def _written_to(folder: Path, store: ObjectStore, cache: Path) -> list[Path]:
    """Return the folders that runs and the agent write to."""
    objects = [store.root / INCOMING] if isinstance(store, FolderStore) else []
    return [folder, cache, *objects]


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
