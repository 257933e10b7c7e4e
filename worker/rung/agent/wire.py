"""What the agent and its warm parent say to each other: JSON messages over a socket pair.

The socket keeps message boundaries (`SOCK_SEQPACKET`). With a `Launch` travel two descriptors:
the write ends of the pipes that become the run's stdout and stderr.
"""

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


class Launch(Struct, frozen=True, tag="launch"):
    """Fork a process for a run."""

    process: str
    """Names the process: the allocation's id, and of a run of several processes the rank."""
    command: Command
    environment: dict[str, str]
    folder: str
    threads: int
    """Threads of one operation in the process, for torch and OpenMP."""


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


ToParent = Launch | Signal
FromParent = Ready | Forked | Refused | Exited

encoder: Final = msgspec.json.Encoder()
to_parent_decoder: Final = msgspec.json.Decoder(ToParent)
from_parent_decoder: Final = msgspec.json.Decoder(FromParent)
