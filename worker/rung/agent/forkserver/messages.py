"""Messages between the agent and its fork server: JSON over a socket.

The socket keeps message boundaries (`SOCK_SEQPACKET`). A `Fork` is sent with five descriptors: a
file in memory with the `Launch`, the write ends of the pipes that become the run's stdout and
stderr, and the read ends, which the fork server keeps for a later agent. The fork server itself
never reads a `Launch`, only the process that it is for does: whatever the fork server holds in its
memory is copied into every later run, and a `Launch` contains the run's token.
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
    execute: a program that replaces the forked process (`exec`)."""
    argv: list[str]
    """The script or module with its arguments; or the program with its arguments."""


class View(Struct, frozen=True):
    """The folders that a run in its own namespaces sees, as absolute paths."""

    hidden: list[str] = []
    """Folders that it does not see; it sees all others as they are outside."""
    writable: list[str] = []
    """Folders below hidden ones that it sees nevertheless."""
    readable: list[str] = []
    """Files and folders that it cannot write, below hidden ones or not."""


class Launch(Struct, frozen=True):
    """What a process that is forked for a run is to execute."""

    process: str
    """Names the process: the allocation's id, with the rank where a run has several processes."""
    command: Command
    environment: dict[str, str]
    folder: str
    threads: int
    """Number of threads of one operation in the process, for torch and OpenMP."""
    view: View | None = None
    """The file system view of a run in its own namespaces."""
    user: int | None = None
    """The id of the user and the group that the process runs as; None: those of the agent."""
    groups: list[int] = []
    """The other groups of that user."""
    secrets_folder: str = ""
    """A folder in memory that the process makes for its secret files; empty: it has none."""
    secrets: dict[str, str] = {}
    """These files."""


class Fork(Struct, frozen=True, tag="fork"):
    """Fork a process for a run."""

    process: str
    sandbox: str | None = None
    """Names the run's namespaces, in which to fork; None: those of the agent."""


class Signal(Struct, frozen=True, tag="signal"):
    """Send a signal to the group of a process; ignored if it is gone."""

    process: str
    signal: int


class Ready(Struct, frozen=True, tag="ready"):
    """The fork server accepts requests now."""

    warmed: list[str]
    """The frameworks that it has imported."""
    seconds: float


class Forked(Struct, frozen=True, tag="forked"):
    """A main process exists."""

    process: str
    pid: int
    sandbox: int | None = None
    """The process id of the first process of its namespaces."""


class Refused(Struct, frozen=True, tag="refused"):
    """The operating system refused to create a process."""

    process: str
    reason: str


class Exited(Struct, frozen=True, tag="exited"):
    """A main process has ended, and all its descendants are gone."""

    process: str
    code: int | None
    signal: int | None


class Stuck(Struct, frozen=True, tag="stuck"):
    """A main process has ended, and SIGKILL does not end its descendants.

    They are stuck in the kernel, and may hold a device. `Exited` follows once they are gone.
    """

    process: str
    count: int


class Stored(Struct, frozen=True, tag="stored"):
    """The output that a process wrote without an agent is on record: delete it."""

    process: str


class Forget(Struct, frozen=True, tag="forget"):
    """A process's exit is on record: forget the process."""

    process: str


class Attach(Struct, frozen=True, tag="attach"):
    """Serve this agent from now on: it has locked the folder, and the previous one is gone."""

    unattended_s: float | None = None
    """How long processes go on training without an agent; None: as before."""


class Look(Struct, frozen=True, tag="look"):
    """Answer with `Looked`; sent by a process that is not an agent."""


class End(Struct, frozen=True, tag="end"):
    """Kill all processes, and exit."""


class Attached(Struct, frozen=True, tag="attached"):
    """The answer to `Attach`; so many `Held` follow."""

    version: int
    """The version of these messages: `VERSION`."""
    key: str
    """`Options.key` of the processes: a digest of packages, environment and options."""
    warmed: list[str]
    held: int


class Held(Struct, frozen=True, tag="held"):
    """A process whose exit is not on record, with the read ends of its pipes.

    If `spilled`, files with the output that it wrote without an agent follow as descriptors.
    """

    process: str
    pid: int
    sandbox: int | None = None
    exited: Exited | None = None
    spilled: bool = False
    dropped_bytes: int = 0
    """Output that did not fit into these files."""


class Looked(Struct, frozen=True, tag="looked"):
    """The runs of this fork server."""

    runs: list[str]
    left_s: float
    """For how long they go on training if no agent attaches; 0 if one is attached."""


ToParent = Fork | Signal | Stored | Forget | Attach | Look | End
FromForkServer = Ready | Forked | Refused | Exited | Stuck | Attached | Held | Looked
VERSION: Final = 1
"""Increased when fork servers of older releases and newer agents become incompatible."""
FOLDER: Final = "forkservers"
"""In the agent's folder: the sockets at which fork servers listen for the next agent."""

encoder: Final = msgspec.json.Encoder()
to_parent_decoder: Final = msgspec.json.Decoder(ToParent)
from_fork_server_decoder: Final = msgspec.json.Decoder(FromForkServer)
_launch_decoder: Final = msgspec.json.Decoder(Launch)


def file_of(launch: bytes) -> int:
    """Return a descriptor of a file in memory with an encoded `Launch`."""
    descriptor = os.memfd_create("launch", os.MFD_CLOEXEC)
    os.write(descriptor, launch)
    return descriptor


def launch_in(descriptor: int) -> Launch:
    """Return the `Launch` in a file."""
    return _launch_decoder.decode(os.pread(descriptor, MESSAGE_BYTES_MAX, 0))
