"""The envelope around every event: CloudEvents 1.0, with Rung's extension attributes.

A *fact* says what happened; it carries its `origin` and the origin's own `sequence`, so that a
repeated one is recognised by a high-water mark. A *decision* says what a process made of a fact;
it carries the fact's id and position and an index, so that facts and decisions merge into one
sequence wherever they are read.

A decision that another processor must know of is relayed onto that one's topic, as a fact of the
same type; `RELAYED` of its record says where, and by whom.
"""

import hashlib
from typing import Final

from msgspec import Struct

from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AgentResumed,
    AgentSuspended,
    AllocationAddressed,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    AllocationSignaled,
    DrainRequested,
    JoinRefused,
    MoveRequested,
    PoolConfigured,
)
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointPinned,
    CheckpointReleased,
    CheckpointRetired,
    CheckpointStored,
)
from rung.events.deadletter import (
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.events.experiment import (
    CancelRequested,
    ExperimentEnded,
    ExperimentPaused,
    ExperimentResumed,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    ResumeRequested,
    SearchPlanned,
)
from rung.events.installation import InstallationUpgraded, PoolUpgraded
from rung.events.ledger_import import ImportCompleted, ImportKeysListed, ImportStarted
from rung.events.metric import AgentBeat, LogsDeleted, LogsDropped, LogsPrinted, MetricsReported
from rung.events.seal import PartitionSealed, PartitionTrimmed
from rung.events.topic import TOPICS, Relayed
from rung.events.trial import (
    RunRequested,
    RunWithdrawn,
    TrialClosed,
    TrialExited,
    TrialPromoted,
    TrialRequested,
    TrialRestored,
    TrialStarted,
    TrialStopped,
    TrialValidated,
)

Payload = (
    ExperimentSubmitted
    | PauseRequested
    | ResumeRequested
    | CancelRequested
    | KillRequested
    | SearchPlanned
    | ExperimentPaused
    | ExperimentResumed
    | ExperimentEnded
    | TrialRequested
    | RunRequested
    | RunWithdrawn
    | TrialPromoted
    | TrialStopped
    | TrialClosed
    | TrialStarted
    | TrialRestored
    | TrialValidated
    | TrialExited
    | CheckpointStored
    | CheckpointDamaged
    | CheckpointPinned
    | CheckpointReleased
    | CheckpointRetired
    | CheckpointDeleted
    | AgentJoined
    | DrainRequested
    | AgentLeft
    | AgentLost
    | AgentSuspended
    | AgentResumed
    | JoinRefused
    | PoolConfigured
    | PoolUpgraded
    | MoveRequested
    | AllocationReleased
    | AllocationAddressed
    | AllocationGranted
    | AllocationSignaled
    | AllocationLost
    | AllocationDropped
    | MetricsReported
    | LogsPrinted
    | LogsDropped
    | LogsDeleted
    | AgentBeat
    | MessageRejected
    | MessageRetryRequested
    | MessageDropped
    | MessageTaken
    | ImportStarted
    | ImportKeysListed
    | ImportCompleted
    | InstallationUpgraded
    | PartitionSealed
    | PartitionTrimmed
)
"""Every event that may lie in the ledger."""

_SUBJECTS: Final = (
    "checkpoint_id",
    "allocation_id",
    "trial_id",
    "experiment_id",
    "agent_id",
    "import_id",
    "place",
    "topic",
    "pool",
    "ledger_id",
)


class Event(Struct, frozen=True, gc=False):
    """One event with its envelope.

    Attributes:
        id: unique and deterministic; the same event written twice has the same id.
        source: who wrote it, `/rung/searcher` or `/rung/agent/<agent_id>`.
        subject: the narrowest thing that it is about.
        time: RFC 3339 in UTC; for people, never for decisions.
        actor: who asked for it, where a person or a token did.
        cause: the id of the event that it answers.
        causeposition, causeindex: of a decision, where its fact lies and which of the fact's
            decisions it is, counted from 0.
        origin, sequence: of a fact, its origin and the origin's own strictly growing number.
        traceparent: the request that it follows from, if that is known; CloudEvents' extension
            for distributed tracing. For people, never for decisions.
    """

    id: str
    source: str
    subject: str
    time: str
    data: Payload
    actor: str | None = None
    cause: str | None = None
    causeposition: int | None = None
    causeindex: int | None = None
    origin: str | None = None
    sequence: int | None = None
    traceparent: str | None = None

    @property
    def type(self) -> str:
        """The versioned name of what happened."""
        return self.data.TYPE

    @property
    def topic(self) -> str:
        """The topic on which it lies; of a decision that is a fact here, that of its relay."""
        name = self.data.TOPIC
        if self.causeposition is None and TOPICS[name].holds == "decisions":
            found = relayed(type(self.data))
            return found.topic if found else name
        return name

    @property
    def key(self) -> str:
        """What its partition is chosen by."""
        key: str = getattr(self.data, TOPICS[self.topic].key)
        return key


def relayed(kind: type[Payload]) -> Relayed | None:
    """Return where decisions of a type are relayed to, None if they are not."""
    return getattr(kind, "RELAYED", None)


def experiment_of(data: Payload) -> str | None:
    """Return the id of the experiment that the event is about, None if it is about none."""
    found: str | None = getattr(data, "experiment_id", None)
    if found is not None:
        return found
    allocation_id: str | None = getattr(data, "allocation_id", None)
    return None if allocation_id is None else allocation_id.partition(".")[0]


def level_of(data: Payload) -> int:
    """Return the logic level to which an event raises its key; 1, the lowest, if to none."""
    return data.level if isinstance(data, ExperimentSubmitted | PoolUpgraded) else 1


def subject_of(data: Payload) -> str:
    """Return the id of the narrowest thing that the event is about."""
    for name in _SUBJECTS:
        if name == "allocation_id" and name not in data.__struct_fields__:
            continue  # a request for a run is about the experiment, and names no allocation
        value: str | None = getattr(data, name, None)
        if value is not None:
            return value
    raise AssertionError(data)


def fact(  # noqa: PLR0913 - the attributes of the envelope
    data: Payload,
    *,
    source: str,
    origin: str,
    sequence: int,
    time: str,
    actor: str | None = None,
    cause: str | None = None,
    traceparent: str | None = None,
) -> Event:
    """Wrap a fact; its id follows from its origin and the origin's sequence."""
    return Event(
        id=f"{origin}#{sequence}",
        source=source,
        subject=subject_of(data),
        time=time,
        data=data,
        actor=actor,
        cause=cause,
        origin=origin,
        sequence=sequence,
        traceparent=traceparent,
    )


def decision(  # noqa: PLR0913 - the attributes of the envelope
    data: Payload,
    *,
    source: str,
    cause: Event,
    position: int,
    index: int,
    traceparent: str | None = None,
) -> Event:
    """Wrap a decision; its id follows from the fact that caused it, so it is the same anywhere.

    It carries the time of its fact: the process that decides has no clock.
    """
    name = f"{cause.id}|{source}|{index}".encode()
    return Event(
        id=hashlib.blake2b(name, digest_size=16).hexdigest(),
        source=source,
        subject=subject_of(data),
        time=cause.time,
        data=data,
        cause=cause.id,
        causeposition=position,
        causeindex=index,
        traceparent=traceparent,
    )
