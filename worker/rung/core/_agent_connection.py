"""Connection to the agent: the trial's end of the socket.

A report costs the training loop an encoding and one non-blocking `send`: data in the socket's
buffer survive the process, whatever kills it. Only when the socket is full does a report go to a
queue, from which a separate thread sends it; until that queue is empty again, later reports are
queued behind it, so that the agent reads them in order. The queue holds `_QUEUE_BYTES_MAX`; where
the agent does not read for that long, reports wait. A second thread reads, and sets a flag when
the agent asks the run to exit.

If the agent goes away, the process goes on training: its reports go to a file (`Unconfirmed`)
until an agent listens again at the same path, which receives what the previous one did not
confirm. After `Welcome.unattended_s` without an agent the run is asked to checkpoint and exit.
Where that is 0, the process ends with its agent. A child that the script forks (a DataLoader's
worker) closes the socket and must not use it.
"""

import contextlib
import itertools
import os
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, Protocol

import msgspec
from msgspec import structs

from rung.cache.log import log
from rung.core.errors import AgentGone, NoAnswer
from rung.core.ipc import protocol
from rung.core.ipc.protocol import (
    NUMBERED,
    Acknowledged,
    BestFound,
    BestRequested,
    Fetched,
    FromTrial,
    Hello,
    Preempt,
    Taken,
    Uploaded,
    Welcome,
)
from rung.core.ipc.unconfirmed import Unconfirmed

EXIT_AGENT_GONE: Final = 77
"""Exit code of a trial process whose agent is gone."""
_WELCOME_TIMEOUT_S: Final = 60.0
_CHUNK: Final = 256 << 10
_WATCHED_BYTES: Final = 64 << 20
_QUEUE_BYTES_MAX: Final = 256 << 20
_RETRY_S: Final = 0.02
_RETRY_S_MAX: Final = 1.0
_REFUSED_S: Final = 30.0
"""How long an agent that listens may refuse a process whose run it is taking over."""
_AGENTS_PART: Final = 0.9
"""The part of a question's time after which the agent says why it cannot answer."""
_NO_ANSWER: Final = (
    "wait longer with `timeout_s`, or catch rung.core.NoAnswer and go on without the value"
)
_NEVER_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Connection(Protocol):
    """Sends a run's messages, and receives requests to stop it."""

    preempted: bool
    """Whether the run was asked to checkpoint and exit."""
    final: bool
    """Whether that was because the search stopped the trial."""

    def send(self, message: FromTrial) -> None:
        """Send a message; returns at once."""
        ...

    def best_validation(self, within_s: float) -> float | None:
        """Return the experiment's best validation so far, None if there is none.

        Raises:
            NoAnswer: it could not be found out within that many seconds.
        """
        ...

    def close(self) -> None:
        """Return when everything that was sent no longer depends on this process."""
        ...


class _Agent(NamedTuple):
    """The address of an agent, and the `Hello` of this process."""

    path: str
    hello: Hello


class AgentConnection:
    """A connection to the agent; `connect` makes one."""

    def __init__(
        self, connection: socket.socket, unread: bytes, agent: _Agent, welcome: Welcome
    ) -> None:
        self.preempted = False
        self.final = False
        self.on_object: Callable[[Fetched | Uploaded], None] = _ignore
        """Called in the connection's thread with each message about objects."""
        self.on_reconnect: Callable[[], None] = _nothing
        """Called in that thread after a reconnection, to repeat open requests."""
        self._socket = connection
        self._agent = agent
        self._unattended_s = welcome.unattended_s
        self._unattended = False
        """Whether there was no agent for that long."""
        self._unconfirmed: Unconfirmed | None = None
        if welcome.unattended_s > 0:
            self._unconfirmed = Unconfirmed(
                Path(welcome.buffer), agent.hello.stream, agent.hello.rank
            )
        self._sending: socket.socket | None = None
        """The socket that the writer is sending on now."""
        self._connected = True
        self._epoch = 0
        """The number of connections so far."""
        self._disk = threading.Lock()
        """Held while the file of unconfirmed messages is used; never by a caller of `send`."""
        self._lock = threading.Lock()
        self._wakeup = threading.Condition(self._lock)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._queue_bytes_max = _QUEUE_BYTES_MAX
        self._watch_bytes = _WATCHED_BYTES
        self._closing = False
        self._numbers = itertools.count(1)
        self._answered = threading.Condition()
        self._questions: dict[int, BestRequested] = {}
        """Those that are not answered yet."""
        self._answers: dict[int, BestFound] = {}
        self._mine = True
        _open_connections.add(self)
        name = "rung-agent-connection"
        self._reader = threading.Thread(target=self._read, args=(unread,), name=name, daemon=True)
        self._writer = threading.Thread(target=self._drain, name=name, daemon=True)
        self._reader.start()
        self._writer.start()

    def send(self, message: FromTrial) -> None:
        """Send a message, in the order of the calls; returns at once.

        Where the agent has not read `_QUEUE_BYTES_MAX`, or is away and the process has reported
        more than `unconfirmed.BYTES_MAX` meanwhile, it waits.

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
        if self._unattended and isinstance(message, Acknowledged):
            message = structs.replace(message, unattended=True)
        data = protocol.report_frame(message)
        with self._lock:
            self._wakeup.wait_for(self._has_room)
            if self._closing:
                raise RuntimeError("the context is closed; report inside `with core.init()`")
            if self._unconfirmed is not None and isinstance(message, NUMBERED):
                self._keep(self._unconfirmed, data)
            if not self._connected:
                return  # other messages are repeated as requests, or have no lasting effect
            if not self._queue:
                try:
                    sent = self._socket.send(data, _NEVER_WAIT)
                except BlockingIOError:
                    sent = 0
                except OSError as error:
                    self._disconnected(str(error))
                    return
                if sent == len(data):
                    return
                data = data[sent:]
            self._enqueue(data)

    def _has_room(self) -> bool:
        """Return whether a message may be queued, or is not to be sent any more."""
        return self._queued_bytes < self._queue_bytes_max or self._closing

    def best_validation(self, within_s: float) -> float | None:
        """Return the experiment's best validation so far, None if there is none.

        It includes what this process sent before. The next agent is asked again if this one goes
        away meanwhile.

        Raises:
            NoAnswer: it could not be found out within that many seconds.
            RuntimeError: as by `send`.
        """
        number = next(self._numbers)
        question = BestRequested(number, within_s * _AGENTS_PART)
        with self._answered:
            self._questions[number] = question
        try:
            self.send(question)
            with self._answered:
                self._answered.wait_for(lambda: number in self._answers, within_s)
        finally:
            with self._answered:
                del self._questions[number]
                answer = self._answers.pop(number, None)
        if answer is None:
            raise NoAnswer(
                f"the agent has not answered within {within_s:g} s: it is being started again, or"
                f" is of an earlier release; {_NO_ANSWER}"
            )
        if answer.problem:
            raise NoAnswer(f"{answer.problem}; {_NO_ANSWER}")
        return answer.value

    def close(self) -> None:
        """Send what is queued and close the connection.

        Messages that the agent has not confirmed by then are in a file, which it reads once the
        process has ended: so this does not wait for it. It waits only while there is no agent and
        the file cannot be written.
        """
        if not self._mine or self._closing:
            return
        with self._lock:
            self._wakeup.wait_for(lambda: not self._must_write or self._unattended)
            self._closing = True
            self._wakeup.notify_all()
        self._writer.join()
        self._store_all()
        with self._lock, contextlib.suppress(OSError):  # the agent may be gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()
        _open_connections.discard(self)

    def _store_all(self) -> None:
        """Write unconfirmed messages to the file."""
        if self._unconfirmed is not None:
            with self._disk:
                with self._lock:
                    self._unconfirmed.store()
                self._unconfirmed.write(self._lock)

    def forget(self) -> None:
        """Close the descriptors in a forked child; the parent's connection is not affected."""
        self._mine = False
        self._socket.close()
        if self._unconfirmed is not None:
            self._unconfirmed.forget()

    def _keep(self, unconfirmed: Unconfirmed, data: bytes) -> None:
        """Keep a numbered frame until it is confirmed; called with the lock held."""
        if unconfirmed.full and not (self._connected or self._unattended):
            log().warning(
                "no agent has read this process's reports for long; it waits for one",
                unread_messages=unconfirmed.last + 1 - unconfirmed.first,
            )
            self._wakeup.wait_for(lambda: self._connected or self._unattended or self._closing)
        unconfirmed.add(data)
        if not self._connected:
            self._wakeup.notify_all()

    def _disconnected(self, reason: str) -> None:
        """Continue without the agent; called with the lock held."""
        if not self._connected:
            return
        if self._unconfirmed is None:
            _end(reason)
        self._connected = False
        self._epoch += 1
        self._queue.clear()
        self._queued_bytes = 0
        self._unconfirmed.store()
        self._wakeup.notify_all()
        # Not closed yet: the writer may use it, and the descriptor must not be reused.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _enqueue(self, data: bytes) -> None:
        self._queue.append(data)
        self._queued_bytes += len(data)
        self._wakeup.notify_all()
        if self._queued_bytes > self._watch_bytes:
            self._watch_bytes *= 2
            log().warning(
                "the agent reads more slowly than this process reports: report less often",
                queued_bytes=self._queued_bytes,
                queued_messages=len(self._queue),
            )

    def _drain(self) -> None:
        """Send queued messages; they stay in the queue until they are sent, to keep the order.

        Without an agent, write unconfirmed messages to the file.
        """
        while True:
            with self._lock:
                self._wakeup.wait_for(lambda: self._queue or self._closing or self._must_write)
                if not (self._queue or self._must_write):
                    return
            if self._must_write:
                self._write()
                continue
            with self._lock:
                if not self._queue:
                    continue
                chunks, epoch, connection = self._chunks(), self._epoch, self._socket
                self._sending = connection
            data, problem = b"".join(chunks), None
            try:
                connection.sendall(data)
            except OSError as error:
                problem = str(error)
            with self._lock:
                self._sending = None
                if connection is not self._socket:
                    connection.close()  # it was replaced meanwhile
                elif epoch == self._epoch and problem is not None:
                    self._disconnected(problem)
                elif epoch == self._epoch:
                    for _ in chunks:
                        self._queue.popleft()
                    self._queued_bytes -= len(data)
                    self._wakeup.notify_all()

    @property
    def _must_write(self) -> bool:
        found = self._unconfirmed
        return found is not None and found.unwritten and not (self._connected or self._closing)

    def _write(self) -> None:
        assert self._unconfirmed is not None
        with self._disk:
            self._unconfirmed.write(self._lock)
        with self._lock:
            if self._must_write:  # the disk cannot be written
                self._wakeup.wait_for(lambda: self._connected or self._closing, _RETRY_S_MAX)
            else:
                self._wakeup.notify_all()

    def _chunks(self) -> list[bytes]:
        chunks, size = [], 0
        for data in self._queue:
            chunks.append(data)
            size += len(data)
            if size >= _CHUNK:
                break
        return chunks

    def _read(self, unread: bytes) -> None:
        """Read from one agent after the other."""
        while True:
            reason = self._listen(unread)
            with self._lock:
                if self._closing:
                    return
                self._disconnected(reason)
            found = self._reconnect()
            if found is None:
                return
            unread = found

    def _listen(self, unread: bytes) -> str:
        """Handle the agent's messages; return why the connection ended."""
        buffer = unread
        while True:
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                self._take(line)
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                return str(error)
            if not data:
                return "it closed the connection"
            buffer += data

    def _reconnect(self) -> bytes | None:
        """Connect to the next agent; return data read after `Welcome`, None if this is closed."""
        assert self._unconfirmed is not None
        leave_at = time.monotonic() + self._unattended_s
        wait_s = _RETRY_S
        while True:
            with self._lock:
                if self._wakeup.wait_for(lambda: self._closing, wait_s):
                    return None
                hello = structs.replace(self._agent.hello, first=self._unconfirmed.first)
                if time.monotonic() > leave_at and not self._unattended:
                    self._unattended = self.preempted = True
                    self._wakeup.notify_all()
            wait_s = min(2 * wait_s, _RETRY_S_MAX)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                welcome, unread = _handshake(connection, self._agent.path, hello)
                self._unattended_s = welcome.unattended_s or self._unattended_s
                self._send_again(connection, welcome.taken)
            except (OSError, msgspec.DecodeError, AgentGone):
                connection.close()
                continue
            self._ask_again()
            self.on_reconnect()
            return unread

    def _ask_again(self) -> None:
        """Repeat to a new agent the questions that the previous one did not answer."""
        with self._answered:
            questions = list(self._questions.values())
        for question in questions:
            with contextlib.suppress(RuntimeError):  # this end was closed meanwhile
                self.send(question)

    def _send_again(self, connection: socket.socket, taken: int) -> None:
        """Send the messages that the new agent lacks, and switch to its connection.

        Raises:
            OSError: the new agent is gone, too.
            AgentGone: this end was closed meanwhile.
        """
        assert self._unconfirmed is not None
        with self._disk:
            with self._lock:
                self._unconfirmed.confirm(taken)
                number = self._unconfirmed.first - 1
            self._unconfirmed.tidy()
        while True:
            with self._disk, self._lock:
                data, number = self._unconfirmed.read(number)
                if self._closing:
                    raise AgentGone("the connection was closed")
                if not data:
                    self._unconfirmed.keep_in_memory()
                    if self._sending is not self._socket:
                        self._socket.close()
                    self._socket = connection
                    self._connected = True
                    self._wakeup.notify_all()
                    return
            connection.sendall(data)

    def _take(self, line: bytes) -> None:
        try:
            message = protocol.agent_decoder.decode(line)
        except msgspec.DecodeError as error:
            log().warning("ignored a message of the agent", error=str(error))
            return
        match message:
            case Preempt():
                self.final |= message.final
                self.preempted = True
            case Fetched() | Uploaded():
                self.on_object(message)
            case BestFound():
                with self._answered:
                    if message.number in self._questions:
                        self._answers[message.number] = message
                        self._answered.notify_all()
            case Taken():
                if self._unconfirmed is not None:
                    with self._disk:
                        with self._lock:
                            self._unconfirmed.confirm(message.number)
                        self._unconfirmed.tidy()
            case Welcome():
                log().warning("ignored a second Welcome of the agent")


def _ignore(_message: Fetched | Uploaded) -> None:
    """Ignore messages about objects."""


def _nothing() -> None:
    """Repeat nothing."""


def connect(path: str, hello: Hello, patience_s: float = 0.0) -> tuple[AgentConnection, Welcome]:
    """Connect to the agent's socket and return the connection with the agent's `Welcome`.

    Args:
        path: of the socket.
        hello: of this process.
        patience_s: how long to wait for an agent that is being started again. One that listens
            may not have taken the run over yet: a refusal is repeated for `_REFUSED_S` at most.

    Raises:
        AgentGone: the agent does not listen, does not answer, or refuses.
    """
    agent = _Agent(path, structs.replace(hello, stream=secrets.token_hex(8)))
    begun, wait_s = time.monotonic(), _RETRY_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            welcome, unread = _handshake(connection, path, agent.hello)
        except (OSError, msgspec.DecodeError, AgentGone) as error:
            connection.close()
            refused = not isinstance(error, OSError)
            limit_s = min(patience_s, _REFUSED_S) if refused else patience_s
            if time.monotonic() - begun + wait_s > limit_s:
                if isinstance(error, AgentGone):
                    raise
                raise AgentGone(f"no agent answers at {path}: {error}") from error
        else:
            return AgentConnection(connection, unread, agent, welcome), welcome
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _RETRY_S_MAX)


def _handshake(connection: socket.socket, path: str, hello: Hello) -> tuple[Welcome, bytes]:
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
            raise AgentGone(
                "the agent closed the connection: the allocation is over, or its token is wrong"
            )
        buffer += data
    line, _, unread = bytes(buffer).partition(b"\n")
    return line, unread


def _end(reason: str) -> NoReturn:
    """End the process: the scheduler has the trial resumed elsewhere."""
    text = f"rung: the agent is gone ({reason}); this process ends, the trial resumes elsewhere\n"
    os.write(2, text.encode())
    os._exit(EXIT_AGENT_GONE)


_open_connections: Final[weakref.WeakSet[AgentConnection]] = weakref.WeakSet()


def _forget_in_child() -> None:
    for connection in list(_open_connections):
        connection.forget()


os.register_at_fork(after_in_child=_forget_in_child)
