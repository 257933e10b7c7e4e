"""The agent's side of its warm parents: starts them, asks them for processes, hears of their ends.

There are two, because a fork costs what its parent holds: one has the frameworks imported, the
other nothing but `rung.core`, for runs that do without frameworks (12 ms less per run). They
live and die together: when one dies, the processes of all runs are ended with it. `lost` is
called then, once what is left of them is killed; afterwards new ones are started. One that dies
before it was ready is started again without the frameworks: better a slow start than none.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from rung.agent.leftovers import kill_orphans
from rung.agent.parent import Parent
from rung.agent.process_tree import parent_of
from rung.agent.spool import Spool
from rung.agent.wire import (
    MESSAGE_BYTES_MAX,
    Exited,
    Fork,
    Forked,
    FromParent,
    Launch,
    Ready,
    Refused,
    Signal,
    encoder,
    file_of,
)

_AGAIN_S: Final = 0.2
_AGAIN_S_MAX: Final = 10.0

_log = structlog.get_logger()


def run_of(process: str) -> str:
    """Return the run that a process is one of, by the process's name."""
    return process.partition("/")[0]


class NotStarted(Exception):
    """A run's process could not be made; its message is written for a person."""


class Starter:
    """Keeps the warm parents alive."""

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        folder: Path,
        spool: Spool,
        *,
        cuda: bool,
        cold: bool,
        hidden: frozenset[str] = frozenset(),
        umask: int | None = None,
        lost: Callable[[], Awaitable[None]],
    ) -> None:
        self._folder = folder
        self._spool = spool
        self._cuda = cuda
        self._cold = cold
        self._hidden = hidden
        self._umask = umask
        self._lost = lost
        self._ready = {True: asyncio.Event(), False: asyncio.Event()}
        """With the frameworks, and without."""
        self._lean: Parent | None = None
        self._warm: Parent | None = None
        """The one that has the frameworks; the lean one where there is none."""
        self._parents: dict[str, Parent] = {}
        """Of each process that was launched and has not ended."""
        self._forks: dict[str, asyncio.Future[int | None]] = {}
        self._exits: dict[str, asyncio.Future[Exited | None]] = {}
        self._mains: dict[str, int] = {}
        self._firsts: dict[int, str] = {}
        """The first process of each sandbox: whose run it is."""

    @property
    def pid(self) -> int | None:
        """The process number of the lean parent, while there is one."""
        return self._lean.pid if self._lean else None

    async def run(self) -> None:
        """Keep warm parents alive until cancelled."""
        wait_s = _AGAIN_S
        cold = self._cold
        try:
            while True:
                parents = self._start(cold=cold)
                await asyncio.wait(
                    [parent.closed for parent in parents], return_when=asyncio.FIRST_COMPLETED
                )
                was_ready = all(parent.ready for parent in parents)
                await self._clear()
                _log.error("a warm parent died; starting anew", was_ready=was_ready)
                await self._lost()
                wait_s = _AGAIN_S if was_ready else min(2 * wait_s, _AGAIN_S_MAX)
                cold = self._cold or not was_ready
                await asyncio.sleep(wait_s)
        finally:
            await self._clear()

    async def ready(self, *, frameworks: bool) -> None:
        """Return when runs can start that want the frameworks, or that do not."""
        await self._ready[frameworks].wait()

    async def launch(
        self, launch: Launch, stdout: int, stderr: int, *, frameworks: bool
    ) -> int | None:
        """Have a process forked for a run; return its number, None if the warm parent died.

        Args:
            launch: what becomes of the process.
            stdout: a pipe's end that becomes its stdout.
            stderr: a pipe's end that becomes its stderr.
            frameworks: whether to fork from the parent that has them imported.

        Raises:
            NotStarted: the operating system refused, or the environment is too large.
        """
        parent = self._parent(frameworks=frameworks)
        assert parent.ready, "wait until it is ready"
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
            parent.send(message, (request, stdout, stderr))
        finally:
            os.close(request)
        return await fork

    async def exited(self, process: str) -> Exited | None:
        """Return how a launched process ended, once it and all it started are gone.

        None: it was lost with the warm parents.
        """
        return await self._exits[process]

    def forget(self, process: str) -> None:
        """Forget a process that has ended."""
        self._exits.pop(process, None)

    def run_with(self, pid: int) -> str | None:
        """Return the run that a process is known to belong to, by what it descends from."""
        known = {main: run_of(process) for process, main in self._mains.items()} | self._firsts
        while pid > 1 and pid not in known:
            pid = parent_of(pid)
        return known.get(pid)

    def signal(self, process: str, number: signal.Signals) -> None:
        """Send a signal to a process's group, if it is alive."""
        parent = self._parents.get(process)
        if parent is not None:
            parent.send(encoder.encode(Signal(process, number)))

    def _start(self, *, cold: bool) -> list[Parent]:
        self._lean = self._warm = self._new_parent(cold=True)
        if not cold:
            self._warm = self._new_parent(cold=False)
        return [self._lean] if cold else [self._lean, self._warm]

    def _new_parent(self, *, cold: bool) -> Parent:
        return Parent(
            self._folder,
            self._spool,
            cuda=self._cuda,
            cold=cold,
            hidden=self._hidden,
            umask=self._umask,
            take=self._take,
        )

    def _parent(self, *, frameworks: bool) -> Parent:
        parent = self._warm if frameworks else self._lean
        assert parent is not None, "wait until it is ready"
        return parent

    def _take(self, message: FromParent) -> None:
        match message:
            case Ready():
                for frameworks, ready in self._ready.items():
                    if self._parent(frameworks=frameworks).ready:
                        ready.set()
            case Forked():
                self._begun(message)
            case Refused():
                del self._parents[message.process]
                fork = self._forks.pop(message.process)
                if not fork.done():
                    fork.set_exception(NotStarted(message.reason))
            case Exited():
                del self._mains[message.process]
                del self._parents[message.process]
                self._forget_sandbox(run_of(message.process))
                exited = self._exits.get(message.process)
                if exited is not None and not exited.done():
                    exited.set_result(message)

    def _begun(self, forked: Forked) -> None:
        self._mains[forked.process] = forked.pid
        if forked.sandbox is not None:
            self._firsts[forked.sandbox] = run_of(forked.process)
        fork = self._forks.pop(forked.process)
        if not fork.done():
            fork.set_result(forked.pid)

    def _forget_sandbox(self, run: str) -> None:
        """Forget the namespaces of a run of which no process lives."""
        if not any(run_of(process) == run for process in self._mains):
            self._firsts = {pid: other for pid, other in self._firsts.items() if other != run}

    async def _clear(self) -> None:
        """Make sure that the warm parents and everything below them are gone."""
        for ready in self._ready.values():
            ready.clear()
        parents = [p for p in dict.fromkeys((self._lean, self._warm)) if p is not None]
        self._lean = self._warm = None
        self._parents.clear()
        await asyncio.gather(*(parent.end() for parent in parents))
        mains = frozenset(self._mains.values()) | self._firsts.keys()
        self._mains, self._firsts = {}, {}
        await asyncio.to_thread(kill_orphans, self._folder, mains)
        await asyncio.gather(*(parent.hear_out() for parent in parents))
        for fork in self._forks.values():
            if not fork.done():
                fork.set_result(None)
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(None)
        self._forks.clear()
