"""Supervisor of the fork servers: starts them, requests processes, receives their exits.

There are two, because the cost of a fork grows with the memory of the parent: one has the
frameworks imported, the other nothing but `rung.core`, for runs without frameworks (12 ms less per
run). They are restarted together: when one dies, the other is ended as well, and with it the
processes of all runs. Once these are killed, `lost` is called; then new fork servers are started.
If one died before it was ready, without the frameworks: a slow start is better than none.

The one with the frameworks takes more memory than all the rest of an agent. Where a limit is set,
it ends when no run has used it for that long, or in the first minute; the next run that needs it
has it started again, and waits some seconds.
"""

import asyncio
import math
import os
import signal
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import structlog

from rung.agent.forkserver.client import Adoption, ForkServerClient, Options, attach
from rung.agent.forkserver.messages import (
    FOLDER,
    MESSAGE_BYTES_MAX,
    Attached,
    Exited,
    Forget,
    Fork,
    Forked,
    FromForkServer,
    Held,
    Launch,
    Looked,
    Ready,
    Refused,
    Signal,
    Stored,
    Stuck,
    encoder,
    file_of,
)
from rung.agent.forkserver.orphans import kill_marked, kill_orphans
from rung.agent.logs.capture import Adopted
from rung.agent.monitoring.process_tree import parent_of
from rung.agent.outbox.outbox import Outbox

_RETRY_S: Final = 0.2
_RETRY_S_MAX: Final = 10.0
_END_S: Final = 15.0
"""How long to wait for killed processes to end."""
_LOOK_S: Final = 1.0
"""The shortest time between two looks at whether the one with the frameworks is idle."""
_UNUSED_S_MAX: Final = 60.0
"""How long the fork server with the frameworks is kept for a first run, where there is a limit."""

_log = structlog.get_logger()


def run_of(process: str) -> str:
    """Return the run of a process, by the process's name."""
    return process.partition("/")[0]


class NotStarted(Exception):
    """A run's process could not be created; the message is for users."""


class ForkServers:
    """Keeps the fork servers alive."""

    def __init__(
        self,
        options: Options,
        outbox: Outbox,
        *,
        cold: bool,
        lost: Callable[[], Awaitable[None]],
        idle_s: float = math.inf,
    ) -> None:
        """Start nothing yet.

        Args:
            options: how they are started.
            outbox: while it is saturated, the output of the fork servers is not read.
            cold: whether none of them imports the frameworks.
            lost: is called when one has died, and the processes of all runs with it.
            idle_s: how long the one with the frameworks is kept while no run uses it.
        """
        self._options = options
        self._outbox = outbox
        self._cold = cold
        self._lost = lost
        self._ready = {True: asyncio.Event(), False: asyncio.Event()}
        """With the frameworks, and without."""
        self._lean: ForkServerClient | None = None
        self._warm: ForkServerClient | None = None
        """The one with the frameworks, None while no run needs it; the lean one if cold."""
        self._idle_s = idle_s
        self._unused = True
        """Whether no run has used the one with the frameworks since it was started."""
        self._used_at = 0.0
        """When a run did, or it was ready to be used, in the loop's time."""
        self._changed = asyncio.Event()
        """Set when a fork server was started besides those that `run` watches."""
        self._retired: list[ForkServerClient] = []
        """Adopted ones with another key: they fork no new processes, and end with their last."""
        self._endings: set[asyncio.Task[None]] = set()
        self._detaching = False
        self._parents: dict[str, ForkServerClient] = {}
        """Process → its fork server, until its exit is on record."""
        self._forks: dict[str, asyncio.Future[int | None]] = {}
        self._exits: dict[str, asyncio.Future[Exited | None]] = {}
        self._mains: dict[str, int] = {}
        self._firsts: dict[int, str] = {}
        """Process id of the first process of a sandbox → its run."""
        self._stuck: dict[str, Callable[[int], None]] = {}
        """Process → what is called with the number of its descendants that do not end."""
        self._outputs: dict[str, list[Adopted]] = {}
        """Process → its pipes, where an earlier session of the agent created it."""

    @property
    def pid(self) -> int | None:
        """The process id of the lean fork server, while there is one."""
        return self._lean.pid if self._lean else None

    @property
    def pids(self) -> list[int]:
        """The process ids of all fork servers."""
        return [client.pid for client in self._clients()]

    async def adopt(self) -> frozenset[str]:
        """Take over the fork servers of an earlier session; return their processes."""
        folder, unattended_s = self._options.folder / FOLDER, self._options.unattended_s
        keys = {self._options.key(cold=cold): cold for cold in (True, False)}
        for path in sorted(folder.glob("*.sock")):
            adoption = await attach(path, unattended_s)
            if adoption is not None:
                self._take_over(adoption, keys)
        self._end_idle()
        return frozenset(self._parents)

    def _take_over(self, adoption: Adoption, keys: dict[str, bool]) -> None:
        key = adoption.attached.key
        client = ForkServerClient(
            self._options, self._outbox, cold=False, key=key, take=self._take, adopted=adoption
        )
        cold = keys.get(key)
        loop = asyncio.get_running_loop()
        if cold is True and self._lean is None:
            self._lean = client
        elif cold is False and not self._cold and self._warm is None:
            self._warm = client
            self._used_at = loop.time()
        else:
            self._retired.append(client)
        for held, descriptors in adoption.held:
            name = held.process
            self._parents[name] = client
            self._forks[name], self._exits[name] = loop.create_future(), loop.create_future()
            files: list[int | None] = [None, None]
            if held.spilled:
                files = [*descriptors[2:]]
            self._outputs[name] = [
                Adopted(read_end, file)
                for read_end, file in zip(descriptors[:2], files, strict=True)
            ]
            if held.dropped_bytes:
                _log.warning("output dropped", process=name, size_bytes=held.dropped_bytes)
            if held.pid:
                self._begun(Forked(name, held.pid, held.sandbox))
            if held.exited is not None:
                self._take(held.exited)
        _log.info("took over a fork server", pid=client.pid, processes=len(adoption.held))

    async def run(self) -> None:
        """Keep fork servers alive until cancelled."""
        wait_s = _RETRY_S
        cold = self._cold
        try:
            while True:
                self._start(cold=cold)
                self._note_ready()
                await self._death()
                was_ready = all(client.ready for client in self._clients())
                await self.clear()
                _log.error("a fork server died; starting again", was_ready=was_ready)
                await self._lost()
                wait_s = _RETRY_S if was_ready else min(2 * wait_s, _RETRY_S_MAX)
                cold = self._cold or not was_ready
                await asyncio.sleep(wait_s)
        finally:
            if self._detaching and self._parents:
                for client in self._clients():
                    client.detach()
            else:
                await self.clear()

    def detach(self) -> None:
        """Leave the processes to a later agent, once `run` ends."""
        self._detaching = True

    async def _death(self) -> None:
        """Return when one of them has died; end the one with the frameworks while it is idle."""
        while True:
            self._changed.clear()
            changed = asyncio.ensure_future(self._changed.wait())
            self._end_unused()
            awaited: list[asyncio.Future[Any]] = [each.closed for each in self._clients()]
            try:
                await asyncio.wait(
                    [*awaited, changed],
                    timeout=min(max(self._idle_s / 4, _LOOK_S), _UNUSED_S_MAX / 4),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                changed.cancel()
            if any(client.closed.done() for client in self._clients()):
                return

    def _end_unused(self) -> None:
        """End the fork server with the frameworks if it has been idle for too long."""
        warm = self._warm
        if warm is None or warm is self._lean or not warm.ready:
            return
        limit_s = min(self._idle_s, _UNUSED_S_MAX) if self._unused else self._idle_s
        idle_s = asyncio.get_running_loop().time() - self._used_at
        if self._idle_s == math.inf or idle_s < limit_s or warm in self._parents.values():
            return
        self._warm = None
        self._ready[True].clear()
        self._retired.append(warm)
        self._end_idle()
        _log.info("ended the fork server with the frameworks: no run needs it", pid=warm.pid)

    def _note_use(self) -> None:
        self._unused = False
        self._used_at = asyncio.get_running_loop().time()

    async def ready(self, *, frameworks: bool) -> None:
        """Return when runs can start, with the frameworks or without."""
        if frameworks:
            self._note_use()
            if self._warm is None and self._lean is not None:
                self._warm = self._new(cold=False)
                self._changed.set()
        await self._ready[frameworks].wait()

    async def launch(
        self,
        launch: Launch,
        written: tuple[int, int],
        read: tuple[int, int],
        *,
        frameworks: bool,
    ) -> int | None:
        """Have a process forked for a run; return its process id, None if the fork server died.

        Args:
            launch: what the process executes.
            written: the pipes' ends that become its stdout and stderr.
            read: their other ends.
            frameworks: whether to fork from the fork server that has imported them.

        Raises:
            NotStarted: the operating system refused, or the environment is too large.
        """
        await self.ready(frameworks=frameworks)  # it may have ended since the run was prepared
        parent = self._parent(frameworks=frameworks)
        data = encoder.encode(launch)
        if len(data) > MESSAGE_BYTES_MAX:
            raise NotStarted(
                f"the entrypoint and the environment variables take {len(data)} bytes; "
                f"at most {MESSAGE_BYTES_MAX} can be passed to a process"
            )
        loop = asyncio.get_running_loop()
        fork: asyncio.Future[int | None] = loop.create_future()
        self._forks[launch.process] = fork
        self._exits[launch.process] = loop.create_future()
        self._parents[launch.process] = parent
        sandbox = run_of(launch.process) if launch.view is not None else None
        request = file_of(data)
        try:
            message = encoder.encode(Fork(launch.process, sandbox))
            parent.send(message, (request, *written, *read))
        finally:
            os.close(request)
        return await fork

    async def exited(self, process: str) -> Exited | None:
        """Return how a launched process ended, once it and all its descendants are gone.

        None: it was lost with the fork servers.
        """
        return await self._exits[process]

    async def made(self, process: str) -> int | None:
        """Return the process id of a process that was requested before; None if it was lost."""
        fork = self._forks.get(process)
        return self._mains.get(process, 0) if fork is None else await fork

    def outputs(self, process: str) -> list[Adopted]:
        """Return the pipes of a process that an earlier session of the agent created."""
        return self._outputs.pop(process, [])

    def on_stuck(self, process: str, call: Callable[[int], None]) -> None:
        """Call a function with the number of descendants that SIGKILL does not end, if any."""
        self._stuck[process] = call

    def stored(self, process: str) -> None:
        """Let its fork server delete the output that a process wrote without an agent."""
        if parent := self._parents.get(process):
            parent.send(encoder.encode(Stored(process)))

    def forget(self, process: str) -> None:
        """Forget a process whose exit is on record."""
        self._exits.pop(process, None)
        self._stuck.pop(process, None)
        parent = self._parents.pop(process, None)
        if parent is None:
            return
        if parent is self._warm:
            self._note_use()
        parent.send(encoder.encode(Forget(process)))
        self._end_idle()

    def _end_idle(self) -> None:
        """End the retired fork servers that have no processes."""
        for client in [each for each in self._retired if each not in self._parents.values()]:
            self._retired.remove(client)
            task = asyncio.create_task(_end(client))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def end(self, processes: Collection[str]) -> None:
        """Kill processes, and forget them once they are gone."""
        for process in processes:
            self.signal(process, signal.SIGKILL)
        ends = [self._exits[process] for process in processes]
        if ends:
            await asyncio.wait(ends, timeout=_END_S)
        for process in processes:
            for output in self.outputs(process):
                output.close()
            self.forget(process)

    def forget_others(self, runs: Collection[str]) -> None:
        """Forget processes of other runs than these: their exits are on record."""
        for process in [each for each in self._parents if run_of(each) not in runs]:
            self.signal(process, signal.SIGKILL)
            for output in self.outputs(process):
                output.close()
            self.forget(process)

    def run_with(self, pid: int) -> str | None:
        """Return the run of a process by its ancestors; None if they are not known."""
        known = {main: run_of(process) for process, main in self._mains.items()} | self._firsts
        while pid > 1 and pid not in known:
            pid = parent_of(pid)
        return known.get(pid)

    def signal(self, process: str, number: signal.Signals) -> None:
        """Send a signal to a process's group, if it is alive."""
        parent = self._parents.get(process)
        if parent is not None:
            parent.send(encoder.encode(Signal(process, number)))

    def _start(self, *, cold: bool) -> None:
        if self._lean is None:
            self._lean = self._new(cold=True)
        if cold:
            self._warm = self._lean
        elif self._warm is None:
            self._warm = self._new(cold=False)
            self._unused = True

    def _new(self, *, cold: bool) -> ForkServerClient:
        key = self._options.key(cold=cold)
        return ForkServerClient(self._options, self._outbox, cold=cold, key=key, take=self._take)

    def _clients(self) -> list[ForkServerClient]:
        present = [each for each in (self._lean, self._warm) if each is not None]
        return list(dict.fromkeys([*present, *self._retired]))

    def _note_ready(self) -> None:
        for frameworks, ready in self._ready.items():
            parent = self._warm if frameworks else self._lean
            if parent is not None and parent.ready:
                ready.set()

    def _parent(self, *, frameworks: bool) -> ForkServerClient:
        parent = self._warm if frameworks else self._lean
        assert parent is not None, "wait until it is ready"
        return parent

    def _take(self, message: FromForkServer) -> None:
        match message:
            case Ready():
                self._used_at = asyncio.get_running_loop().time()
                self._note_ready()
            case Forked():
                self._begun(message)
            case Refused():
                self._parents.pop(message.process, None)
                fork = self._forks.pop(message.process)
                if not fork.done():
                    fork.set_exception(NotStarted(message.reason))
            case Exited():
                self._mains.pop(message.process, None)
                self._forget_sandbox(run_of(message.process))
                exited = self._exits.get(message.process)
                if exited is not None and not exited.done():
                    exited.set_result(message)
            case Stuck():
                if call := self._stuck.get(message.process):
                    call(message.count)
            case Attached() | Held() | Looked():
                pass  # only at the beginning of a connection

    def _begun(self, forked: Forked) -> None:
        self._mains[forked.process] = forked.pid
        if forked.sandbox is not None:
            self._firsts[forked.sandbox] = run_of(forked.process)
        fork = self._forks.pop(forked.process)
        if not fork.done():
            fork.set_result(forked.pid)

    def _forget_sandbox(self, run: str) -> None:
        """Forget the namespaces of a run without processes."""
        if not any(run_of(process) == run for process in self._mains):
            self._firsts = {pid: other for pid, other in self._firsts.items() if other != run}

    async def clear(self) -> None:
        """Make sure that the fork servers and all their descendants are gone."""
        for ready in self._ready.values():
            ready.clear()
        clients = self._clients()
        self._lean = self._warm = None
        self._retired.clear()
        self._parents.clear()
        await asyncio.gather(*(client.end() for client in clients), *self._endings)
        mains = frozenset(self._mains.values()) | self._firsts.keys()
        self._mains, self._firsts = {}, {}
        await asyncio.to_thread(kill_orphans, self._options.folder, mains)
        if self._options.unattended_s:  # orphans of an adopted one have another parent
            await asyncio.to_thread(kill_marked, self._options.folder)
        await asyncio.gather(*(client.read_rest() for client in clients))
        for outputs in self._outputs.values():
            for output in outputs:
                output.close()
        self._outputs.clear()
        for fork in self._forks.values():
            if not fork.done():
                fork.set_result(None)
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(None)
        self._forks.clear()


async def _end(client: ForkServerClient) -> None:
    await client.end()
    await client.read_rest()
