"""Messages between a trial process and its agent, over a Unix socket.

Each message is one line of JSON, tagged with its `type`. The trial connects to the path in
`RUNG_SOCKET`, sends `Hello`, receives `Welcome`, and from then on both sides send at any time. All
messages before the end of file belong to the run, even if the process was killed right after: the
agent reads to the end before it reports the exit.

A process whose agent is gone reconnects to the same path. Both ends count the `NUMBERED` messages
of its stream: the agent confirms durable ones with `Taken`; the process keeps the rest, and sends
all after `Welcome.taken` again. So each message takes effect exactly once.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from rung.core.errors import ReportRefused
from rung.events.trial import MetricValue, RunSpec
from rung.secrets.values import SecretValue
from rung.storage import FileEntry

REPORT_BYTES_MAX: Final = 512 * 1024
"""Limit of one report as JSON, below Kafka's default limit of 1 MiB."""
STATUS_CHARACTERS_MAX: Final = 1000
METADATA_BYTES_MAX: Final = 64 * 1024
"""Limit of a trial's metadata as JSON."""


class Hello(Struct, frozen=True, tag="hello"):
    """The first message of a trial process."""

    allocation_id: str
    token: str
    rank: int
    pid: int
    stream: str = ""
    """Id of this process's messages over all its connections; empty: it will not reconnect."""
    first: int = 1
    """The number of the first message that the process still keeps or will send."""
    attends: bool = True
    """Whether it will learn from this connection that it is to exit; `get_info` only asks."""


class Reported(Struct, frozen=True, tag="reported"):
    """Metrics at a step. `kind` is `training`, `validation` or any other group."""

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

    The agent uploads it, and answers with `Uploaded`.
    """

    checkpoint_id: str
    files: dict[str, FileEntry]
    """By name, relative to the checkpoint's folder."""
    previous: str | None = None
    """The checkpoint whose unchanged files it may share."""


class Restored(Struct, frozen=True, tag="restored"):
    """The run resumes from this checkpoint."""

    checkpoint_id: str
    steps_completed: int


class Damaged(Struct, frozen=True, tag="damaged"):
    """A checkpoint could not be restored; the run tries the one before it."""

    checkpoint_id: str
    reason: str


class Acknowledged(Struct, frozen=True, tag="acknowledged"):
    """The script acknowledges a request to exit, and is about to do so with exit code 0."""

    unattended: bool = False
    """Whether it exits because there was no agent for too long."""


class HparamsRefused(Struct, frozen=True, tag="hparams_refused"):
    """The script cannot train with these hyperparameters."""

    reason: str


class StatusSet(Struct, frozen=True, tag="status_set"):
    """A text for users about the trial's current activity."""

    status: str


class MetadataSet(Struct, frozen=True, tag="metadata_set"):
    """The trial's metadata; replaces earlier ones."""

    metadata: dict[str, Any]


class ProgressReported(Struct, frozen=True, tag="progress_reported"):
    """The progress of the trial, from 0 to 1."""

    progress: float


class DeletionRequested(Struct, frozen=True, tag="deletion_wanted"):
    """A request to delete a checkpoint of this experiment, unless a trial may resume from it."""

    checkpoint_id: str


class Heartbeat(Struct, frozen=True, tag="alive"):
    """The script makes progress without anything else to report."""


class Fetch(Struct, frozen=True, tag="fetch"):
    """A request to download an object of the store; the answer is `Fetched`."""

    number: int
    """Chosen by the process; the answer has the same."""
    name: str


class BestRequested(Struct, frozen=True, tag="best_requested"):
    """A request for the experiment's best validation so far; the answer is `BestFound`."""

    number: int
    """Chosen by the process; the answer has the same."""
    within_s: float
    """How long the agent may take to answer."""


class Welcome(Struct, frozen=True, tag="welcome"):
    """The agent's answer to `Hello`."""

    spec: RunSpec
    agent_id: str
    objects_url: str
    """The object store, for `rung.storage.open_store`."""
    slots: list[int]
    """Ids of the slots that the run holds on this agent."""
    staged: bool = False
    """Whether that store is a staging folder for this run: the agent, which has the credentials,
    uploads checkpoints from there to the object store, and answers with `Uploaded`."""
    within: str = ""
    """The only prefix below which the run can write in that store; empty: everywhere."""
    taken: int = 0
    """The number of the last message of the process's stream that took effect."""
    unattended_s: float = 0.0
    """How long the process goes on training without an agent; 0: it ends with its agent."""
    buffer: str = ""
    """The folder for unconfirmed messages meanwhile."""
    secrets: list[SecretValue] = []
    """Values that belong into the configuration and are in no file."""


class Taken(Struct, frozen=True, tag="taken"):
    """The stream's messages up to a number are durable, and need not be sent again."""

    number: int


class Preempt(Struct, frozen=True, tag="preempt"):
    """A request to checkpoint and exit."""

    grace_ms: int
    final: bool = False
    """Whether the search stopped the trial, so that no later run needs a new checkpoint."""


class Fetched(Struct, frozen=True, tag="fetched"):
    """The answer to a `Fetch`."""

    number: int
    path: str = ""
    """A file with the object's content, owned by the process now; empty if there is a problem."""
    problem: str = ""
    missing: bool = False
    """Whether the problem is that there is no such object."""


class BestFound(Struct, frozen=True, tag="best_found"):
    """The answer to a `BestRequested`."""

    number: int
    value: float | None = None
    """None: no trial has validated yet, or there is a problem."""
    problem: str = ""


class Uploaded(Struct, frozen=True, tag="shipped"):
    """A staged checkpoint, or a part of one, is uploaded, or cannot be."""

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
    | Heartbeat
    | Fetch
    | BestRequested
    | StatusSet
    | MetadataSet
    | ProgressReported
    | DeletionRequested
)
FromAgent = Welcome | Preempt | Fetched | BestFound | Uploaded | Taken
NUMBERED: Final = (
    Reported,
    Stored,
    Restored,
    Damaged,
    Acknowledged,
    HparamsRefused,
    StatusSet,
    MetadataSet,
    ProgressReported,
    DeletionRequested,
)
"""Messages whose effect must be neither lost nor repeated. Both ends number those of a stream,
from
1. Others are requests that are repeated (`Fetch`, `BestRequested`, `StagedPart`), or have no
lasting effect."""

encoder: Final = msgspec.json.Encoder()
trial_decoder: Final = msgspec.json.Decoder(FromTrial)
agent_decoder: Final = msgspec.json.Decoder(FromAgent)


def frame(message: FromTrial | FromAgent) -> bytes:
    """Encode a message as one line."""
    return encoder.encode(message) + b"\n"


def report_frame(message: FromTrial) -> bytes:
    """Encode a message of a script as one line.

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
