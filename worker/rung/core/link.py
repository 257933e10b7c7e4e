"""The trial's end of the socket to its agent.

A report costs the training loop an encoding and one `send` that never waits: what the socket
takes survives the process, whatever kills it. Only when the socket is full does a report go to a
queue, from which a thread of its own sends it; until that queue is empty again, later reports
queue up behind it, so that the agent reads them in the order in which they were made. A second
thread reads, and sets a flag when the agent wants the run to leave.

If the agent goes away, this process's life no longer counts, and it ends at once. A child that
the script forks (a DataLoader's worker) lets go of the socket and must not speak on it.
"""

import contextlib
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

import msgspec

from rung.cache.log import log
from rung.core import protocol
from rung.core.errors import AgentGone
from rung.core.protocol import Fetched, FromTrial, Hello, Preempt, Shipped, Welcome

EXIT_AGENT_GONE: Final = 77
"""Exit code of a trial process whose agent is gone."""
_WELCOME_TIMEOUT_S: Final = 60.0
_CHUNK: Final = 256 << 10
_WATCHED_BYTES: Final = 64 << 20
_NEVER_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Link(Protocol):
    """Where a run's messages go, and where its orders come from."""

    preempted: bool
    """Whether the run was asked to checkpoint and leave."""

    def send(self, message: FromTrial) -> None:
        """Hand a message over; returns at once."""
        ...

    def close(self) -> None:
        """Return when everything sent is out of this process's hands."""
        ...


class AgentLink:
    """A connection to the agent; `connect` makes one."""

    def __init__(self, connection: socket.socket, unread: bytes) -> None:
        self.preempted = False
        self.hear: Callable[[Fetched | Shipped], None] = _ignore
        """Is called, in a thread of the link's, with what the agent says of objects."""
        self._socket = connection
        self._lock = threading.Lock()
        self._wakeup = threading.Condition(self._lock)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._watch_bytes = _WATCHED_BYTES
        self._closing = False
        self._mine = True
        _open_links.add(self)
        name = "rung-link"
        self._reader = threading.Thread(target=self._read, args=(unread,), name=name, daemon=True)
        self._writer = threading.Thread(target=self._drain, name=name, daemon=True)
        self._reader.start()
        self._writer.start()

    def send(self, message: FromTrial) -> None:
        """Hand a message over; returns at once, in the order of the calls.

        Raises:
            RuntimeError: this process was forked from the one that holds the connection, or the
                connection is closed.
            ReportRefused: metrics that are too large for a ledger.
        """
        if not self._mine:
            raise RuntimeError(
                "report from the process that called core.init(), not from one it forked "
                "(a DataLoader's worker, for example)"
            )
        data = protocol.report_frame(message)
        with self._lock:
            if self._closing:
                raise RuntimeError("the context is closed; report inside `with core.init()`")
            if not self._queue:
                try:
                    sent = self._socket.send(data, _NEVER_WAIT)
                except BlockingIOError:
                    sent = 0
                except OSError as error:
                    _end(str(error))
                if sent == len(data):
                    return
                data = data[sent:]
            self._enqueue(data)

    def close(self) -> None:
        """Send what is queued and close the connection."""
        if not self._mine or self._closing:
            return
        with self._lock:
            self._closing = True
            self._wakeup.notify()
        self._writer.join()
        with contextlib.suppress(OSError):  # the agent may be gone; nothing is left to say
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()
        _open_links.discard(self)

    def forget(self) -> None:
        """Let go of the connection in a forked child; the parent's stays as it is."""
        self._mine = False
        self._socket.close()

    def _enqueue(self, data: bytes) -> None:
        self._queue.append(data)
        self._queued_bytes += len(data)
        self._wakeup.notify()
        if self._queued_bytes > self._watch_bytes:
            self._watch_bytes *= 2
            log().warning(
                "the agent reads more slowly than this process reports; report less often",
                queued_bytes=self._queued_bytes,
                queued_messages=len(self._queue),
            )

    def _drain(self) -> None:
        """Send what is queued; it stays in the queue until it is sent, to keep the order."""
        while True:
            with self._lock:
                self._wakeup.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                chunks = self._chunks()
            data = b"".join(chunks)
            try:
                self._socket.sendall(data)
            except OSError as error:
                _end(str(error))
            with self._lock:
                for _ in chunks:
                    self._queue.popleft()
                self._queued_bytes -= len(data)

    def _chunks(self) -> list[bytes]:
        chunks, size = [], 0
        for data in self._queue:
            chunks.append(data)
            size += len(data)
            if size >= _CHUNK:
                break
        return chunks

    def _read(self, unread: bytes) -> None:
        buffer = unread
        while True:
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                self._take(line)
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                data, reason = b"", str(error)
            else:
                reason = "it closed the connection"
            if not data:
                if self._closing:
                    return
                _end(reason)
            buffer += data

    def _take(self, line: bytes) -> None:
        try:
            message = protocol.agent_decoder.decode(line)
        except msgspec.DecodeError as error:
            log().warning("the agent said what this version does not know", error=str(error))
            return
        match message:
            case Preempt():
                self.preempted = True
            case Fetched() | Shipped():
                self.hear(message)
            case Welcome():
                log().warning("the agent welcomed this process twice")


def _ignore(_message: Fetched | Shipped) -> None:
    """Hear of objects that nobody asked for."""


def connect(path: str, hello: Hello) -> tuple[AgentLink, Welcome]:
    """Connect to the agent's socket and return the link with what the agent answered.

    Raises:
        AgentGone: the agent does not listen, does not answer, or refuses.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        try:
            welcome, unread = _greet(connection, path, hello)
        except (OSError, msgspec.DecodeError) as error:
            raise AgentGone(f"no agent answers at {path}: {error}") from error
        undo.pop_all()
    return AgentLink(connection, unread), welcome


def _greet(connection: socket.socket, path: str, hello: Hello) -> tuple[Welcome, bytes]:
    connection.settimeout(_WELCOME_TIMEOUT_S)
    connection.connect(path)
    connection.sendall(protocol.frame(hello))
    answer, unread = _first_line(connection)
    connection.settimeout(None)
    welcome = protocol.agent_decoder.decode(answer)
    if not isinstance(welcome, Welcome):
        raise AgentGone(f"the agent at {path} answered {type(welcome).__name__} to Hello")
    return welcome, unread


def _first_line(connection: socket.socket) -> tuple[bytes, bytes]:
    buffer = bytearray()
    while b"\n" not in buffer:
        data = connection.recv(1 << 16)
        if not data:
            raise AgentGone("the agent closed the connection: it does not know this allocation")
        buffer += data
    line, _, unread = bytes(buffer).partition(b"\n")
    return line, unread


def _end(reason: str) -> NoReturn:
    """End the process: the run goes on elsewhere, from its last checkpoint."""
    text = f"rung: the agent is gone ({reason}); this process ends, its run counts no longer\n"
    os.write(2, text.encode())
    os._exit(EXIT_AGENT_GONE)


_open_links: Final[weakref.WeakSet[AgentLink]] = weakref.WeakSet()


def _forget_in_child() -> None:
    for link in list(_open_links):
        link.forget()


os.register_at_fork(after_in_child=_forget_in_child)
