"""The agent's end of the trials' sockets.

A connection says `Hello` first, with the token of its allocation; the run it belongs to then gets
its messages in order. A process that is known to belong to another run is refused, whatever it
knows. What is no message is reported to the run and skipped; who says no proper
`Hello` in time is disconnected. While the spool is saturated, nothing more is read.

The connections of one run, and of all, are limited, so that none can take the agent's open files.
At a limit the oldest connection without a `Hello` gives way to a new one; where each has said one,
the new one is refused: a process whose connection ends would end, too.
"""

import asyncio
import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from rung.agent.spool import Spool
from rung.core.protocol import (
    REPORT_BYTES_MAX,
    Damaged,
    FromAgent,
    FromTrial,
    Hello,
    Reported,
    Restored,
    Stored,
    frame,
    trial_decoder,
)
from rung.runtime.http.limits import Limits, raise_open_files

LIMITS: Final = Limits(
    connections=8192, connections_per_address=512, head_s=10.0, head_bytes=16 * 1024
)
"""Of all connections, of those of one run, and of its `Hello`."""
REST_S: Final = 0.01
"""How long a connection that said nothing but training metrics is left unread.

Reading each report at once wakes this process beside every training step, which costs the step
more than the report itself; what waits in the socket meanwhile is as safe there as here.
"""
MESSAGE_BYTES_MAX: Final = 8 * 1024**2
_FOR_THE_LEDGER: Final = (Reported, Stored, Restored, Damaged)
_BACKLOG: Final = 512
_REFUSALS_EVERY_S: Final = 60.0
_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user, group."""

_log = structlog.get_logger()


class Speaker(Protocol):
    """A run, as its connections see it."""

    @property
    def token(self) -> str:
        """The secret that a `Hello` must know."""
        ...

    def connected(self, connection: "Connection") -> None:
        """Hear that a process of the run has said a proper `Hello`."""
        ...

    def received(self, connection: "Connection", message: FromTrial) -> None:
        """Take a message."""
        ...

    def rejected(self, reason: str) -> None:
        """Hear of something that was no message."""
        ...

    def disconnected(self, connection: "Connection") -> None:
        """Hear that all was read that the process said, and that it says no more."""
        ...


class Endpoint:
    """Accepts the connections of all runs of an agent."""

    def __init__(
        self,
        spool: Spool,
        find: Callable[[str], Speaker | None],
        run_with: Callable[[int], str | None],
    ) -> None:
        """Serve the runs of an agent.

        Args:
            spool: holds back what says too much.
            find: returns the run of an allocation.
            run_with: returns the allocation that a process, by its number, is known to be of.
        """
        self.spool = spool
        self.find = find
        self.run_with = run_with
        self.limits = LIMITS
        """As far as the open files of the process allow."""
        self.strangers: dict[int, Connection] = {}
        """That have not said a `Hello`, the oldest first."""
        self.marks: dict[bytes, asyncio.Future[None]] = {}
        self._of_holder: dict[str, set[Connection]] = {}
        self._count = 0
        self._refused_at = float("-inf")
        self._path: Path | None = None
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen at the path."""
        loop = asyncio.get_running_loop()
        self.limits = LIMITS.within(raise_open_files())
        self._path = path
        self._server = await loop.create_unix_server(
            lambda: Connection(self), str(path), backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for stranger in list(self.strangers.values()):
            stranger.abort()

    async def settled(self) -> None:
        """Return when every connection made so far has been accepted and has said who it is.

        Connections are accepted in the order in which they were made: once one of our own has
        come through, all before it have.
        """
        assert self._path is not None
        loop = asyncio.get_running_loop()
        mark = secrets.token_hex(8).encode()
        self.marks[mark] = loop.create_future()
        own, _ = await loop.create_unix_connection(asyncio.Protocol, str(self._path))
        own.write(mark + b"\n")
        try:
            await self.marks[mark]
            before = list(self.strangers.values())
            await asyncio.gather(*(stranger.known.wait() for stranger in before))
        finally:
            del self.marks[mark]
            own.abort()

    def admits(self, connection: "Connection", holder: str) -> bool:
        """Count a connection as its holder's; return whether there may be one more."""
        own = self._of_holder.get(holder, set())
        if len(own) >= self.limits.connections_per_address and not self._evict(own):
            self._refuse(holder, f"{len(own)} connections of {holder}")
            return False
        if self._count >= self.limits.connections and not self._evict(None):
            self._refuse(holder, f"{self._count} connections in all")
            return False
        self._of_holder.setdefault(holder, set()).add(connection)
        self._count += 1
        return True

    def forget(self, connection: "Connection", holder: str) -> None:
        """Count a connection no more."""
        own = self._of_holder.get(holder, set())
        if connection in own:
            own.remove(connection)
            self._count -= 1
        if not own:
            self._of_holder.pop(holder, None)

    def _evict(self, among: "set[Connection] | None") -> bool:
        """Disconnect the oldest one without a `Hello`, if there is any."""
        for stranger in self.strangers.values():
            if stranger.counted and (among is None or stranger in among):
                stranger.abort()
                stranger.uncount()
                return True
        return False

    def _refuse(self, holder: str, reached: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._refused_at < _REFUSALS_EVERY_S:
            return
        self._refused_at = now
        _log.warning("refused a connection to the agent's socket", reached=reached)
        run = self.find(holder)
        if run is not None:
            run.rejected(f"one connection too many; there are {reached}")


class Connection(asyncio.Protocol):
    """One process of one run."""

    _transport: asyncio.Transport

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._run: Speaker | None = None
        self._rest = b""
        self._skipping = False
        self._holder: str | None = None
        self.known = asyncio.Event()
        self.rank = 0

    def say(self, message: FromAgent) -> None:
        """Send a message to the process."""
        self._transport.write(frame(message))

    def abort(self) -> None:
        """Disconnect at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the `Hello`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        head_s = self._endpoint.limits.head_s
        self._deadline = asyncio.get_running_loop().call_later(head_s, transport.abort)
        pid, user = self._peer()
        if pid != os.getpid():
            self._count_for(self._endpoint.run_with(pid) or f"user {user}")
        self._endpoint.strangers[id(self)] = self

    @property
    def counted(self) -> bool:
        """Whether it takes one of the connections that there may be."""
        return self._holder is not None

    def uncount(self) -> None:
        """Take none any more."""
        if self._holder is not None:
            self._endpoint.forget(self, self._holder)
            self._holder = None

    def _count_for(self, holder: str) -> bool:
        """Count it as a holder's, which it is disconnected for where there are too many."""
        self.uncount()
        if self._endpoint.admits(self, holder):
            self._holder = holder
            return True
        self._transport.abort()
        return False

    def data_received(self, data: bytes) -> None:
        """Take what the process said."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        can_wait = bool(lines)
        for line in lines:
            if self._skipping:
                self._skipping = False
            else:
                can_wait &= self._take(line)
        most = self._endpoint.limits.head_bytes if self._run is None else MESSAGE_BYTES_MAX
        if len(self._rest) > most:
            self._skipping = True
            self._rest = b""
            self._reject(f"a message longer than {most} bytes")
        elif self._skipping:
            self._rest = b""
        if self._endpoint.spool.saturated and not self._transport.is_closing():
            self._transport.pause_reading()
            self._endpoint.spool.when_room(self._resume)
        elif can_wait and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(REST_S, self._resume)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """Everything was read."""
        self.uncount()
        self._forget_stranger()
        if self._run is not None:
            if self._rest and not self._skipping:
                self._reject("a message that broke off")
            self._run.disconnected(self)

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _take(self, line: bytes) -> bool:
        """Take a message; return whether what follows one of its kind can wait."""
        if self._run is None and line in self._endpoint.marks:
            self._forget_stranger()
            self._endpoint.marks[line].set_result(None)
            return False
        try:
            message = trial_decoder.decode(line)
        except msgspec.DecodeError as error:
            self._reject(f"{error}: {line[:200].decode('utf-8', 'replace')}")
            return False
        if len(line) > REPORT_BYTES_MAX and isinstance(message, _FOR_THE_LEDGER):
            self._reject(f"a report of {len(line)} bytes, more than {REPORT_BYTES_MAX}")
            return False
        if self._run is not None:
            self._run.received(self, message)
            return isinstance(message, Reported) and message.kind == "training"
        if isinstance(message, Hello):
            self._greet(message)
        else:
            self._reject("the first message was no hello")
        return False

    def _greet(self, hello: Hello) -> None:
        run = self._endpoint.find(hello.allocation_id)
        if run is None or not hmac.compare_digest(run.token.encode(), hello.token.encode()):
            self._reject(f"a hello for {hello.allocation_id[:80]!r} with a wrong token")
            return
        other = self._endpoint.run_with(self._peer()[0])
        if other not in {None, hello.allocation_id}:
            self._reject(f"a hello for {hello.allocation_id!r} from a process of {other}")
            return
        if self._holder != hello.allocation_id and not self._count_for(hello.allocation_id):
            return
        self._run = run
        self.rank = hello.rank
        run.connected(self)
        self._forget_stranger()

    def _peer(self) -> tuple[int, int]:
        """Return the number and the user of the process at the other end, from the kernel."""
        connection: socket.socket = self._transport.get_extra_info("socket")
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(found)
        return pid, user

    def _forget_stranger(self) -> None:
        self._deadline.cancel()
        self._endpoint.strangers.pop(id(self), None)
        self.known.set()

    def _reject(self, reason: str) -> None:
        """Report a bad message; a stranger is disconnected, a run goes on."""
        if self._run is not None:
            self._run.rejected(reason)
        elif not self._transport.is_closing():
            _log.warning("rejected a connection to the agent's socket", reason=reason)
            self._transport.abort()
