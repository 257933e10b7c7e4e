"""The agent's end of the socket, speaking the real protocol, for tests of the trial's end."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rung.core.ipc import environment, protocol
from rung.core.ipc.protocol import (
    NUMBERED,
    BestFound,
    Fetched,
    FromTrial,
    Heartbeat,
    Hello,
    Preempt,
    Reported,
    Taken,
    Uploaded,
    Welcome,
)
from rung.events.trial import RunSpec

T = TypeVar("T")
TOKEN = "t0ken"  # noqa: S105 - not a secret


def run_spec(**changes: Any) -> RunSpec:
    """Return a run of a search for `loss` over batches."""
    fields: dict[str, Any] = {
        "experiment_id": "exp00000",
        "trial_id": "exp00000.3",
        "trial_index": 3,
        "run": 1,
        "hparams": {"lr": 0.1},
        "seed": 17,
        "length": None,
        "time_metric": "batches",
        "restore": [],
        "code_digest": None,
        "config": {"searcher": {"metric": "loss", "smaller_is_better": True}},
    }
    return RunSpec(**(fields | changes))


class AgentEnd:
    """Welcomes trial processes, several at a time where a run has ranks; remembers what they say.

    Attributes:
        messages: what was said after `Hello`, in order, over all connections.
        hellos: how each connection began.
        staged: whether the runs' objects are only staged where they put them.
        unattended_s: how long processes train on without an agent.
        buffer: where they write what it has not confirmed.
        taken: of each stream, how many numbered messages came.
    """

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "agent.sock"
        self.objects_url = (folder / "objects").as_uri()
        self.spec = spec
        self.staged = False
        self.unattended_s = 0.0
        self.buffer = folder
        self.taken: dict[str, int] = {}
        self.beats = 0
        self.messages: list[FromTrial] = []
        self.hellos: list[Hello] = []
        self.reading = threading.Event()
        self.reading.set()
        self.on_message: Callable[[FromTrial], None] = lambda _message: None
        self._changed = threading.Condition()
        self._connections: list[socket.socket] = []
        self._ended = 0
        self._readers: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def successor(self) -> "AgentEnd":
        """Die, and return the agent that comes next, at the same path, with what this one took."""
        self._refuse()  # before: a process that finds itself without an agent connects at once
        self.vanish()
        self.close()
        self.path.unlink()
        agent = AgentEnd(self.path.parent, self.spec)
        agent.staged, agent.unattended_s = self.staged, self.unattended_s
        agent.taken = self.taken
        return agent

    @property
    def environment(self) -> dict[str, str]:
        """What the agent sets for a trial process."""
        return {
            environment.SOCKET_VARIABLE: str(self.path),
            environment.ALLOCATION_VARIABLE: f"{self.spec.trial_id}.{self.spec.run}",
            environment.TOKEN_VARIABLE: TOKEN,
            environment.RANK_VARIABLE: "0",
        }

    def preempt(self, *, final: bool = False) -> None:
        """Ask the connected processes to leave, for good or not."""
        self.say(Preempt(30_000, final))

    def say(self, message: Preempt | Uploaded | Fetched | BestFound | Taken) -> None:
        """Tell the connected processes something."""
        assert self._connections
        for connection in list(self._connections):
            connection.sendall(protocol.frame(message))

    def vanish(self) -> None:
        """Close the connections, as an agent that dies."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def wait_for(self, condition: Callable[["AgentEnd"], bool], timeout: float = 20.0) -> None:
        """Return when the condition holds; it is looked at after every message."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), timeout), self.messages

    def wait_for_end(self, connections: int = 1) -> None:
        """Return when that many connections were read to their end."""
        self.wait_for(lambda agent: agent._ended >= connections)

    @property
    def connected(self) -> int:
        """How many processes are connected."""
        return len(self._connections)

    def reports(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Return the steps and values reported for a kind, in order."""
        found = [m for m in self.messages if isinstance(m, Reported) and m.kind == kind]
        return [(message.step, dict(message.values)) for message in found]

    def of(self, kind: type[T]) -> list[T]:
        """Return the messages of a type, in order."""
        return [message for message in self.messages if isinstance(message, kind)]

    def close(self) -> None:
        """Stop listening."""
        self.reading.set()
        if self._listener.fileno() == -1:
            return
        self._refuse()
        for reader in self._readers:
            reader.join()
        self._listener.close()

    def _refuse(self) -> None:
        """Accept no connection any more."""
        with contextlib.suppress(OSError):  # it does already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            reader = threading.Thread(target=self._on_object, args=[connection], daemon=True)
            self._readers.append(reader)
            reader.start()

    def _on_object(self, connection: socket.socket) -> None:
        with connection:
            self._listen(connection)
            self._connections.remove(connection)
        with self._changed:
            self._ended += 1
            self._changed.notify_all()

    def _listen(self, connection: socket.socket) -> None:
        stream = ""
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        return  # cut off: the process sends it again, if there is one
                    stream = self._take(connection, line, stream)
        except (BrokenPipeError, ConnectionResetError):  # gone, with a message from here unread
            pass

    def _take(self, connection: socket.socket, line: bytes, stream: str) -> str:
        self.reading.wait()
        message = protocol.trial_decoder.decode(line)
        if isinstance(message, Hello):
            self.hellos.append(message)
            welcome = Welcome(
                self.spec,
                "agent-1",
                self.objects_url,
                [0],
                staged=self.staged,
                taken=self.taken.get(message.stream, 0),
                unattended_s=self.unattended_s,
                buffer=str(self.buffer),
            )
            connection.sendall(protocol.frame(welcome))
            return message.stream
        if isinstance(message, Heartbeat):  # how many there are depends on how long it took
            self.beats += 1
            return stream
        if isinstance(message, NUMBERED):
            self.taken[stream] = self.taken.get(stream, 0) + 1
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        self.on_message(message)
        return stream


@contextlib.contextmanager
def agent_end(folder: Path, **changes: Any) -> Iterator[AgentEnd]:
    """Yield an agent's end that grants a run with the given changes."""
    agent = AgentEnd(folder, run_spec(**changes))
    try:
        yield agent
    finally:
        agent.close()
