"""Handover: processes, exits and output that a fork server keeps for the next agent.

    attached    keeps exits of processes until the agent has recorded them; read ends of pipes
    detached    there is no agent: the output of processes goes to files, up to a limit each
    attach      the next agent receives the exits, the files and the pipes
    stored      the output is on record, and its files are deleted

A fork server listens in the folder `FOLDER` of its agent's folder, to which trials have no access.
Only processes of its own user are answered. It ends by itself: soon where it has no processes, at
once when the folder is gone, and otherwise when no agent came in time: the processes have been
asked to exit by then.
"""

import contextlib
import os
import select
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import structs

from rung.agent.forkserver.messages import (
    FOLDER,
    MESSAGE_BYTES_MAX,
    VERSION,
    Attach,
    Attached,
    End,
    Exited,
    Forked,
    FromForkServer,
    Held,
    Look,
    Looked,
    Refused,
    encoder,
    to_parent_decoder,
)

SPILLED_BYTES_MAX: Final = 64 << 20
"""Kept of one stream of one process while there is no agent; the rest is counted and dropped."""
LEAVE_S: Final = 600.0
"""How long processes may take to checkpoint and exit once they were unattended for too long."""
STOP_S: Final = 10.0
"""How long after that they may take to end on SIGTERM."""
_IDLE_S: Final = 20.0
"""How long a server without processes waits for an agent, which need not start a new one."""
_CHUNK: Final = 64 << 10
_HELLO_S: Final = 2.0
_CREDENTIALS: Final = struct.Struct("3i")


class _Output:
    """One of the pipes that a process prints to."""

    def __init__(self, read_end: int) -> None:
        self.read_end = read_end
        self.file: int | None = None
        self.size = 0
        self.dropped = 0
        self.open = True
        """Whether the write end is still open."""

    def read(self) -> None:
        """Read what there is into the file."""
        try:
            data = os.read(self.read_end, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.open = False
            return
        kept = data[: SPILLED_BYTES_MAX - self.size]
        try:
            if self.file is None:
                self.file = _nameless_file()
            # Written at an explicit offset: an agent that reads the file moves the shared one.
            self.size += os.pwrite(self.file, kept, self.size)
        except OSError:
            kept = b""
        self.dropped += len(data) - len(kept)

    def close(self) -> None:
        """Close the pipe and delete what was read."""
        os.close(self.read_end)
        self.clear()

    def clear(self) -> None:
        """Delete what was read."""
        if self.file is not None:
            os.close(self.file)
        self.file, self.size, self.dropped = None, 0, 0


class _Kept:
    """A process, until its end is on record."""

    def __init__(self, process: str, outputs: list[_Output]) -> None:
        self.process = process
        self.outputs = outputs
        self.pid = 0
        self.sandbox: int | None = None
        self.exited: Exited | None = None


class Handover:
    """What the next agent takes over from a fork server."""

    def __init__(self, poll: select.poll, unattended_s: float, key: str) -> None:
        """Keep nothing yet.

        Args:
            poll: watches the listener, and pipes while there is no agent.
            unattended_s: how long processes go on training without an agent; 0: they end with it.
            key: `Options.key` of the processes.
        """
        self._poll = poll
        self._unattended_s = unattended_s
        self._key = key
        self._kept: dict[str, _Kept] = {}
        self._listener: socket.socket | None = None
        self._path = Path()
        self._detached_at: float | None = None
        self.warmed: list[str] = []

    def listen(self) -> None:
        """Listen for the next agent; the working folder is the agent's."""
        if not self._unattended_s:
            return
        Path(FOLDER).mkdir(mode=0o700, exist_ok=True)
        self._path = Path(FOLDER) / f"{os.getpid()}.sock"
        begun = self._path.with_suffix(".new")  # a `.sock` that refuses connections is deleted
        begun.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(begun))
        self._listener.listen()
        begun.rename(self._path)
        self._poll.register(self._listener, select.POLLIN)

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._listener.close()

    def descriptors(self) -> Iterator[int]:
        """Yield the descriptors that a forked child must close."""
        if self._listener is not None:
            yield self._listener.fileno()
        for output in self._outputs():
            yield output.read_end
            if output.file is not None:
                yield output.file

    @property
    def detached(self) -> bool:
        """Whether there is no agent."""
        return self._detached_at is not None

    @property
    def alive(self) -> list[str]:
        """The processes that have not ended."""
        return [kept.process for kept in self._kept.values() if kept.exited is None]

    def keep(self, process: str, read_ends: list[int]) -> None:
        """Keep the pipes of a process that is about to be forked."""
        self._kept[process] = _Kept(process, [_Output(each) for each in read_ends])

    def note(self, message: FromForkServer) -> None:
        """Record a message about a process."""
        match message:
            case Forked() if message.process in self._kept:
                kept = self._kept[message.process]
                kept.pid, kept.sandbox = message.pid, message.sandbox
            case Refused():
                self.forget(message.process)
            case Exited() if message.process in self._kept:
                self._kept[message.process].exited = message
            case _:
                pass

    def stored(self, process: str) -> None:
        """Delete the output that a process wrote without an agent: it is on record."""
        if kept := self._kept.get(process):
            for output in kept.outputs:
                output.clear()

    def forget(self, process: str) -> None:
        """Forget a process whose exit is on record."""
        kept = self._kept.pop(process, None)
        for output in kept.outputs if kept else ():
            self._unwatch(output)
            output.close()

    def detach(self) -> bool:
        """Continue without an agent; return False where processes end with it."""
        if self._listener is None:
            return False
        self._detached_at = time.monotonic()
        for output in self._outputs():
            if output.open:
                self._poll.register(output.read_end, select.POLLIN)
        return True

    def read(self, descriptor: int) -> bool:
        """Read from a pipe that is ready; return False if the descriptor is not one of these."""
        for output in self._outputs():
            if output.read_end == descriptor:
                output.read()
                if not output.open:
                    self._unwatch(output)
                return True
        return False

    def overdue_s(self) -> float:
        """Return for how long the processes are overdue to exit; negative if they are not."""
        if self._detached_at is None:
            return float("-inf")
        if not self._path.exists():
            return float("inf")  # the agent's folder is gone: there will be no other agent
        left_s = self._unattended_s + (LEAVE_S if self.alive else 0.0)
        if not self._kept:
            left_s = min(left_s, _IDLE_S)
        return time.monotonic() - self._detached_at - left_s

    def accept(self) -> tuple[socket.socket, Attach | End] | None:
        """Accept a connection; return it with its request if that is `Attach` or `End`."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        try:
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, user, _ = _CREDENTIALS.unpack(found)
            if user != os.geteuid():
                raise PermissionError
            connection.settimeout(_HELLO_S)
            request = to_parent_decoder.decode(connection.recv(MESSAGE_BYTES_MAX))
            connection.settimeout(None)
            if isinstance(request, Look):
                connection.sendall(encoder.encode(self._looked()))
            elif isinstance(request, End) or (isinstance(request, Attach) and self.detached):
                return connection, request
        except (OSError, ValueError):  # no request, or one of an incompatible release
            pass
        connection.close()
        return None

    @property
    def listening(self) -> int:
        """The descriptor at which others connect; -1 if there is none."""
        return -1 if self._listener is None else self._listener.fileno()

    def attach(self, control: socket.socket, unattended_s: float | None) -> None:
        """Hand all processes over to an agent.

        Args:
            control: the connection to it.
            unattended_s: how long processes go on training without it; None: as before.

        Raises:
            OSError: the agent is gone; nothing is lost.
        """
        attached = Attached(VERSION, self._key, self.warmed, len(self._kept))
        control.sendall(encoder.encode(attached))
        for kept in self._kept.values():
            held = Held(kept.process, kept.pid, kept.sandbox, kept.exited)
            files = [output.file for output in kept.outputs if output.file is not None]
            if files:
                for output in kept.outputs:
                    output.file = _nameless_file() if output.file is None else output.file
                files = [output.file for output in kept.outputs if output.file is not None]
            dropped = sum(output.dropped for output in kept.outputs)
            held = structs.replace(held, spilled=bool(files), dropped_bytes=dropped)
            pipes = [output.read_end for output in kept.outputs]
            socket.send_fds(control, [encoder.encode(held)], [*pipes, *files])
        for output in self._outputs():
            self._unwatch(output)
        self._detached_at = None
        if unattended_s is not None:
            self._unattended_s = unattended_s

    def _looked(self) -> Looked:
        runs = sorted({name.partition("/")[0] for name in self.alive})
        left_s = 0.0
        if self._detached_at is not None:
            left_s = max(0.0, self._detached_at + self._unattended_s - time.monotonic())
        return Looked(runs, left_s)

    def _outputs(self) -> Iterator[_Output]:
        for kept in self._kept.values():
            yield from kept.outputs

    def _unwatch(self, output: _Output) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(output.read_end)


def _nameless_file() -> int:
    """Return an unlinked file in the agent's folder, freed with its last descriptor."""
    file, name = tempfile.mkstemp(dir=FOLDER)
    os.unlink(name)  # noqa: PTH108 - of mkstemp
    return file
