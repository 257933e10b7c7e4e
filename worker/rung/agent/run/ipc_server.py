"""IPC server: the agent's end of the sockets to trial processes.

A client sends `Hello` first, with the token of its allocation; the run of that then receives its
messages in order. A process of another run is refused, even with the token. Data that are not a
message are reported to the run and skipped; a client without a valid `Hello` in time is
disconnected. While the outbox is saturated, nothing is read.

The connections of one run, and of all, are limited, so that no run can exhaust the agent's open
files. At a limit a new connection replaces the oldest one without a `Hello`; if there is none, the
new one is refused, because a process may end with its connection.
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

from rung.agent.outbox.outbox import Outbox
from rung.core.ipc.protocol import (
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
"""Limits of all connections, of those of one run, and of a `Hello`."""
REST_S: Final = 0.01
"""How long a connection is left unread after messages that were training metrics only.

Reading each report at once wakes this process during every training step, which costs the step
more than the report itself; data in the socket's buffer survive the sender like those that were
read.
"""
MESSAGE_BYTES_MAX: Final = 8 * 1024**2
_FOR_THE_LEDGER: Final = (Reported, Stored, Restored, Damaged)
_BACKLOG: Final = 512
_REFUSALS_EVERY_S: Final = 60.0
_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user, group."""

_log = structlog.get_logger()


class Session(Protocol):
    """A run, as its connections see it."""

    @property
    def token(self) -> str:
        """The secret that a `Hello` must contain."""
        ...

    def connected(self, connection: "Connection") -> None:
        """Called when a process of the run has sent a valid `Hello`."""
        ...

    def received(self, connection: "Connection", message: FromTrial) -> None:
        """Called for each message."""
        ...

    def refused(self, connection: "Connection", message: FromTrial, reason: str) -> None:
        """Called for a message that is skipped, such as one that is too large."""
        ...

    def rejected(self, reason: str) -> None:
        """Called for data that are not a message."""
        ...

    def disconnected(self, connection: "Connection") -> None:
        """Called when a connection has ended and all its data were read."""
        ...


class IpcServer:
    """Accepts the connections of all runs of an agent."""

    def __init__(
        self,
        outbox: Outbox,
        find: Callable[[str], Session | None],
        run_with: Callable[[int], str | None],
    ) -> None:
        """Serve the runs of an agent.

        Args:
            outbox: while it is saturated, nothing is read.
            find: returns the run of an allocation.
            run_with: returns the allocation of a process id, None if it is not known.
        """
        self.outbox = outbox
        self.find = find
        self.run_with = run_with
        self.limits = LIMITS
        """Lowered to the process's limit of open files."""
        self.unauthenticated: dict[int, Connection] = {}
        """Connections without a `Hello`, the oldest first."""
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
        for client in list(self.unauthenticated.values()):
            client.abort()

    async def settled(self) -> None:
        """Return when every connection made so far has been accepted and has sent its `Hello`.

        Connections are accepted in order: once one of the agent's own was accepted, all before it
        were.
        """
        assert self._path is not None
        loop = asyncio.get_running_loop()
        mark = secrets.token_hex(8).encode()
        self.marks[mark] = loop.create_future()
        own, _ = await loop.create_unix_connection(asyncio.Protocol, str(self._path))
        own.write(mark + b"\n")
        try:
            await self.marks[mark]
            before = list(self.unauthenticated.values())
            await asyncio.gather(*(client.known.wait() for client in before))
        finally:
            del self.marks[mark]
            own.abort()

    def admits(self, connection: "Connection", holder: str) -> bool:
        """Count a connection of a holder; return False if its limit is reached."""
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
        """Remove a connection from the counts."""
        own = self._of_holder.get(holder, set())
        if connection in own:
            own.remove(connection)
            self._count -= 1
        if not own:
            self._of_holder.pop(holder, None)

    def _evict(self, among: "set[Connection] | None") -> bool:
        """Disconnect the oldest one without a `Hello`, if there is any."""
        for client in self.unauthenticated.values():
            if client.counted and (among is None or client in among):
                client.abort()
                client.uncount()
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
            run.rejected(f"too many connections; there are {reached}")


class Connection(asyncio.Protocol):
    """The connection of one process of a run."""

    _transport: asyncio.Transport

    def __init__(self, ipc_server: IpcServer) -> None:
        self._ipc_server = ipc_server
        self._run: Session | None = None
        self._rest = b""
        self._skipping = False
        self._holder: str | None = None
        self.known = asyncio.Event()
        self.rank = 0
        self.stream = ""
        """Names the stream of numbered messages; empty where the process will not reconnect."""
        self.first = 1
        """The number of the first message that the process can still send."""
        self.attends = True
        """Whether the process acts on requests to exit."""

    def send(self, message: FromAgent) -> None:
        """Send a message to the process."""
        self._transport.write(frame(message))

    def abort(self) -> None:
        """Disconnect at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the time limit for the `Hello`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        head_s = self._ipc_server.limits.head_s
        self._deadline = asyncio.get_running_loop().call_later(head_s, transport.abort)
        pid, user = self._peer()
        if pid != os.getpid():
            self._count_for(self._ipc_server.run_with(pid) or f"user {user}")
        self._ipc_server.unauthenticated[id(self)] = self

    @property
    def counted(self) -> bool:
        """Whether it is counted against the limits."""
        return self._holder is not None

    def uncount(self) -> None:
        """Do not count it any more."""
        if self._holder is not None:
            self._ipc_server.forget(self, self._holder)
            self._holder = None

    def _count_for(self, holder: str) -> bool:
        """Count it for a holder; disconnect it, and return False, at the limit."""
        self.uncount()
        if self._ipc_server.admits(self, holder):
            self._holder = holder
            return True
        self._transport.abort()
        return False

    def data_received(self, data: bytes) -> None:
        """Split received data into messages."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        can_wait = bool(lines)
        for line in lines:
            if self._skipping:
                self._skipping = False
            else:
                can_wait &= self._take(line)
        most = self._ipc_server.limits.head_bytes if self._run is None else MESSAGE_BYTES_MAX
        if len(self._rest) > most:
            self._skipping = True
            self._rest = b""
            self._reject(f"a message longer than {most} bytes")
        elif self._skipping:
            self._rest = b""
        if self._ipc_server.outbox.saturated and not self._transport.is_closing():
            self._transport.pause_reading()
            self._ipc_server.outbox.when_room(self._resume)
        elif can_wait and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(REST_S, self._resume)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """Forget the connection; all its data were read."""
        self.uncount()
        self._forget_client()
        if self._run is not None:
            if self._rest and not self._skipping and not self.stream:
                self._reject("a message that broke off")
            self._run.disconnected(self)

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _take(self, line: bytes) -> bool:
        """Handle a message; return whether reading may pause after one of its kind."""
        if self._run is None and line in self._ipc_server.marks:
            self._forget_client()
            self._ipc_server.marks[line].set_result(None)
            return False
        try:
            message = trial_decoder.decode(line)
        except msgspec.DecodeError as error:
            self._reject(f"{error}: {line[:200].decode('utf-8', 'replace')}")
            return False
        if self._run is not None:
            if len(line) > REPORT_BYTES_MAX and isinstance(message, _FOR_THE_LEDGER):
                text = f"a report of {len(line)} bytes, more than {REPORT_BYTES_MAX}"
                self._run.refused(self, message, text)
                return False
            self._run.received(self, message)
            return isinstance(message, Reported) and message.kind == "training"
        if isinstance(message, Hello):
            self._authenticate(message)
        else:
            self._reject("the first message was not a hello")
        return False

    def _authenticate(self, hello: Hello) -> None:
        run = self._ipc_server.find(hello.allocation_id)
        if run is None:
            self._reject(
                f"a hello for {hello.allocation_id[:80]!r}, which does not run here, or is"
                " not taken over yet"
            )
            return
        if not hmac.compare_digest(run.token.encode(), hello.token.encode()):
            self._reject(f"a hello for {hello.allocation_id[:80]!r} with a wrong token")
            return
        other = self._ipc_server.run_with(self._peer()[0])
        if other not in {None, hello.allocation_id}:
            self._reject(f"a hello for {hello.allocation_id!r} from a process of {other}")
            return
        if self._holder != hello.allocation_id and not self._count_for(hello.allocation_id):
            return
        self._run = run
        self.rank, self.stream, self.first = hello.rank, hello.stream, hello.first
        self.attends = hello.attends
        run.connected(self)
        self._forget_client()

    def _peer(self) -> tuple[int, int]:
        """Return the process id and the user id of the peer, from the kernel."""
        connection: socket.socket = self._transport.get_extra_info("socket")
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(found)
        return pid, user

    def _forget_client(self) -> None:
        self._deadline.cancel()
        self._ipc_server.unauthenticated.pop(id(self), None)
        self.known.set()

    def _reject(self, reason: str) -> None:
        """Report invalid data to the run; disconnect a client without a valid `Hello`."""
        if self._run is not None:
            self._run.rejected(reason)
        elif not self._transport.is_closing():
            _log.warning("rejected a connection to the agent's socket", reason=reason)
            self._transport.abort()
