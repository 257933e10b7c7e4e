"""What the agent and its warm parent say to each other: JSON messages over a socket pair.

The socket keeps message boundaries (`SOCK_SEQPACKET`). With a `Fork` travel three descriptors: a
file in memory with the `Launch`, and the write ends of the pipes that become the run's stdout and
stderr. The warm parent itself never reads a `Launch`, only the process that it is for: what the
warm parent has in its memory every later run has in its own, and a `Launch` has the run's token.
"""

import os
from typing import Final, Literal

import msgspec
from msgspec import Struct

MESSAGE_BYTES_MAX: Final = 128 * 1024
"""The longest message; a longer `Launch` means an environment too large to pass on."""


class Command(Struct, frozen=True):
    """What a run executes."""

    how: Literal["script", "module", "execute"]
    """script, module: Python inside the fork, as `python file` and `python -m name` would run it;
    execute: a program that takes the fork's place."""
    argv: list[str]
    """The script or module with its arguments; or the program with its arguments."""


class View(Struct, frozen=True):
    """Which folders a run in namespaces of its own sees, by absolute paths."""

    hidden: list[str] = []
    """Folders that it does not see; all others are as outside."""
    writable: list[str] = []
    """Folders below hidden ones that it sees all the same."""
    readable: list[str] = []
    """Files and folders that it cannot write, below hidden ones or not."""


class Launch(Struct, frozen=True):
    """What a process becomes that is forked for a run."""

    process: str
    """Names the process: the allocation's id, and of a run of several processes the rank."""
    command: Command
    environment: dict[str, str]
    folder: str
    threads: int
    """Threads of one operation in the process, for torch and OpenMP."""
    view: View | None = None
    """Of a run in namespaces of its own."""
    user: int | None = None
    """The id of the user and the group that the process runs as; None: those of the agent."""
    groups: list[int] = []
    """The other groups of that user."""


class Fork(Struct, frozen=True, tag="fork"):
    """Fork a process for a run."""

    process: str
    sandbox: str | None = None
    """Names the namespaces that the process belongs into: the run's; None: those of the agent."""


class Signal(Struct, frozen=True, tag="signal"):
    """Send a signal to the group of a process; nothing if it is gone."""

    process: str
    signal: int


class Ready(Struct, frozen=True, tag="ready"):
    """The warm parent takes requests now."""

    warmed: list[str]
    """The frameworks that it has imported."""
    seconds: float


class Forked(Struct, frozen=True, tag="forked"):
    """A main process exists."""

    process: str
    pid: int
    sandbox: int | None = None
    """The number of the first process of its namespaces."""


class Refused(Struct, frozen=True, tag="refused"):
    """The operating system did not let a process be made."""

    process: str
    reason: str


class Exited(Struct, frozen=True, tag="exited"):
    """A main process has ended, and every process that descended from it is gone."""

    process: str
    code: int | None
    signal: int | None
    left_over: int
    """Processes that even SIGKILL has not ended yet (stuck in the kernel)."""


ToParent = Fork | Signal
FromParent = Ready | Forked | Refused | Exited

encoder: Final = msgspec.json.Encoder()
to_parent_decoder: Final = msgspec.json.Decoder(ToParent)
from_parent_decoder: Final = msgspec.json.Decoder(FromParent)
_launch_decoder: Final = msgspec.json.Decoder(Launch)


def file_of(launch: bytes) -> int:
    """Return a descriptor of a file in memory with an encoded `Launch`."""
    descriptor = os.memfd_create("launch", os.MFD_CLOEXEC)
    os.write(descriptor, launch)
    return descriptor


def launch_in(descriptor: int) -> Launch:
    """Return the `Launch` in a file."""
    return _launch_decoder.decode(os.pread(descriptor, MESSAGE_BYTES_MAX, 0))
