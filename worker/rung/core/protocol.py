"""What a trial process and its agent say to each other, over a Unix socket.

Each message is one line of JSON, tagged with its `type`. The trial connects to the path in
`RUNG_SOCKET`, says `Hello`, gets `Welcome`, and from then on both sides send at will. All that a
trial says before its end of file belongs to the run, also when the process was killed right
after: the agent reads to the end before it reports the exit.
"""

from typing import Final

import msgspec
from msgspec import Struct

from rung.core.errors import ReportRefused
from rung.events.trial import MetricValue, RunSpec
from rung.storage import FileEntry

SOCKET_VARIABLE: Final = "RUNG_SOCKET"
"""Environment variable with the path of the agent's socket."""
ALLOCATION_VARIABLE: Final = "RUNG_ALLOCATION"
"""Environment variable with the allocation's id; its absence means: not managed by Rung."""
TOKEN_VARIABLE: Final = "RUNG_ALLOCATION_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the secret that lets this process speak for its allocation."""
RANK_VARIABLE: Final = "RUNG_RANK"
"""Environment variable with the process's rank within the run, from 0."""
SIZE_VARIABLE: Final = "RUNG_SIZE"
"""Environment variable with the number of the run's processes."""
LOCAL_RANK_VARIABLE: Final = "RUNG_LOCAL_RANK"
"""Environment variable with the process's rank among those on its agent, from 0."""
LOCAL_SIZE_VARIABLE: Final = "RUNG_LOCAL_SIZE"
"""Environment variable with the number of the run's processes on this agent."""
CROSS_RANK_VARIABLE: Final = "RUNG_CROSS_RANK"
"""Environment variable with the rank of this agent among the run's agents, from 0."""
CROSS_SIZE_VARIABLE: Final = "RUNG_CROSS_SIZE"
"""Environment variable with the number of the run's agents."""
CHIEF_VARIABLE: Final = "RUNG_CHIEF"
"""Environment variable with the `host:port` at which rank 0 waits for the others."""
KEY_VARIABLE: Final = "RUNG_KEY"
"""Environment variable with what proves to the other ranks that a process is one of them."""
REPORT_BYTES_MAX: Final = 512 * 1024
"""Of one report as JSON. A topic of Kafka's takes 1 MiB, where nothing else was asked for."""


class Hello(Struct, frozen=True, tag="hello"):
    """The first message of a trial process."""

    allocation_id: str
    token: str
    rank: int
    pid: int


class Reported(Struct, frozen=True, tag="reported"):
    """Metrics at a step. `kind` is `training`, `validation` or a group of the script's own."""

    kind: str
    step: int
    time_ms: int
    values: dict[str, MetricValue]


class Stored(Struct, frozen=True, tag="stored"):
    """A checkpoint is complete in the object store."""

    checkpoint_id: str
    steps_completed: int
    size_bytes: int
    files: int
    digest: str


class StagedPart(Struct, frozen=True, tag="staged_part"):
    """This process's part of a checkpoint is staged; the run's first agent has the manifest.

    The agent carries it on, and answers with `Shipped`.
    """

    checkpoint_id: str
    files: dict[str, FileEntry]
    """By name, relative to the checkpoint's folder."""
    previous: str | None = None
    """The checkpoint whose unchanged files it may share."""


class Restored(Struct, frozen=True, tag="restored"):
    """The run goes on from this checkpoint."""

    checkpoint_id: str
    steps_completed: int


class Damaged(Struct, frozen=True, tag="damaged"):
    """A checkpoint could not be restored; the run tries the one before it."""

    checkpoint_id: str
    reason: str


class Acknowledged(Struct, frozen=True, tag="acknowledged"):
    """The script saw the preemption and is about to leave with exit code 0."""


class HparamsRefused(Struct, frozen=True, tag="hparams_refused"):
    """The script cannot train with these hyperparameters."""

    reason: str


class Alive(Struct, frozen=True, tag="alive"):
    """The script makes progress, though it has nothing to report."""


class Fetch(Struct, frozen=True, tag="fetch"):
    """Please bring an object of the store onto this machine; the answer is `Fetched`."""

    number: int
    """Drawn by the process, for the answer."""
    name: str


class Welcome(Struct, frozen=True, tag="welcome"):
    """The agent's answer to `Hello`."""

    spec: RunSpec
    agent_id: str
    objects_url: str
    """The object store, for `rung.storage.open_store`."""
    slots: list[int]
    """Ids of the slots that the run holds on this agent."""
    staged: bool = False
    """Whether that store is a folder of the agent's for this run: from there the agent carries
    checkpoints on to the real one, of which only it has the keys, and answers with `Shipped`."""
    within: str = ""
    """The prefix below which alone the run can write in that store; empty: everywhere."""


class Preempt(Struct, frozen=True, tag="preempt"):
    """Please checkpoint and leave."""

    grace_ms: int


class Fetched(Struct, frozen=True, tag="fetched"):
    """The answer to a `Fetch`."""

    number: int
    path: str = ""
    """The object's bytes in a file that is the process's now; empty if there is a problem."""
    problem: str = ""
    missing: bool = False
    """Whether the problem is that there is no such object."""


class Shipped(Struct, frozen=True, tag="shipped"):
    """A checkpoint, or a part of one, that was staged is in the real store, or will never be."""

    checkpoint_id: str
    problem: str = ""


FromTrial = (
    Hello
    | Reported
    | Stored
    | StagedPart
    | Restored
    | Damaged
    | Acknowledged
    | HparamsRefused
    | Alive
    | Fetch
)
FromAgent = Welcome | Preempt | Fetched | Shipped

encoder: Final = msgspec.json.Encoder()
trial_decoder: Final = msgspec.json.Decoder(FromTrial)
agent_decoder: Final = msgspec.json.Decoder(FromAgent)


def frame(message: FromTrial | FromAgent) -> bytes:
    """Return the message as it goes over the socket."""
    return encoder.encode(message) + b"\n"


def report_frame(message: FromTrial) -> bytes:
    """Return what a script says as it goes over the socket.

    Raises:
        ReportRefused: metrics that are too large for a ledger.
    """
    data = frame(message)
    if len(data) > REPORT_BYTES_MAX and isinstance(message, Reported):
        raise ReportRefused(
            f"{message.kind} metrics of step {message.step}: {len(message.values)} values make "
            f"{len(data)} bytes, more than the {REPORT_BYTES_MAX} of one report; report fewer, "
            "and keep the others in a file of the checkpoint"
        )
    return data
