"""The envelope around every event: CloudEvents 1.0, with Rung's extension attributes.

A *fact* is what happened; it carries its `origin` and the origin's own `sequence`, so that a
repeated one is recognised by a high-water mark. A *decision* is what a processor derived from a
fact; it carries the fact's id and position and an index, so that facts and decisions merge into
one sequence wherever they are read.

A decision that another processor needs is relayed onto that one's topic, as a fact of the same
type; `RELAYED` of its record is that topic and the service that relays it.
"""

import hashlib
from typing import Final

from msgspec import Struct

from rung.events import (
    allocation,
    checkpoint,
    deadletter,
    directory,
    experiment,
    installation,
    ledger_import,
    metric,
    seal,
    trial,
    webhook,
)
from rung.events.changes import subject_of_change
from rung.events.topic import TOPICS, Relayed

Payload = (
    experiment.ExperimentSubmitted
    | experiment.PauseRequested
    | experiment.ResumeRequested
    | experiment.CancelRequested
    | experiment.KillRequested
    | experiment.ExtensionRequested
    | experiment.SearchExtended
    | experiment.RetentionChanged
    | experiment.ResourcesRequested
    | experiment.ResourcesChanged
    | experiment.SlotTimeCounted
    | experiment.LimitReached
    | experiment.DescriptionChanged
    | experiment.ExperimentMoved
    | experiment.DeletionRequested
    | experiment.RestorationRequested
    | experiment.DeletionDue
    | experiment.DeletionScheduled
    | experiment.ExperimentRestored
    | experiment.ExperimentRetired
    | experiment.ExperimentDeleted
    | experiment.SearchPlanned
    | experiment.SearchDeferred
    | experiment.SearchContinued
    | experiment.ExperimentPaused
    | experiment.ExperimentResumed
    | experiment.ExperimentEnded
    | trial.TrialRequested
    | trial.RunRequested
    | trial.RunWithdrawn
    | trial.TrialPromoted
    | trial.TrialStopped
    | trial.TrialKillRequested
    | trial.TrialClosed
    | trial.TrialStarted
    | trial.TrialRestored
    | trial.TrialValidated
    | trial.TrialStatusSet
    | trial.TrialMetadataSet
    | trial.TrialProgressReported
    | trial.TrialExited
    | trial.LogMatched
    | checkpoint.CheckpointStored
    | checkpoint.CheckpointDamaged
    | checkpoint.CheckpointPinned
    | checkpoint.PinAnswered
    | checkpoint.CheckpointDeletionRequested
    | checkpoint.CheckpointReleased
    | checkpoint.CheckpointRetired
    | checkpoint.CheckpointDeleted
    | checkpoint.CheckpointHeld
    | checkpoint.CheckpointHoldRefused
    | allocation.AgentJoined
    | allocation.DrainRequested
    | allocation.AgentLeft
    | allocation.AgentLost
    | allocation.AgentSuspended
    | allocation.AgentResumed
    | allocation.JoinRefused
    | allocation.PoolConfigured
    | installation.PoolUpgraded
    | allocation.MoveRequested
    | allocation.AllocationReleased
    | allocation.AllocationAddressed
    | allocation.AllocationGranted
    | allocation.AllocationSignaled
    | allocation.AllocationLost
    | allocation.AllocationDropped
    | directory.ChangeRequested
    | directory.DirectoryChanged
    | directory.ChangeRefused
    | directory.HoldRequested
    | directory.HoldReleased
    | directory.HoldAnswered
    | metric.MetricsReported
    | metric.MetricsDeleted
    | metric.LogsPrinted
    | metric.LogsDropped
    | metric.LogsDeleted
    | metric.AgentBeat
    | deadletter.MessageRejected
    | deadletter.MessageRetryRequested
    | deadletter.MessageDropped
    | deadletter.MessageTaken
    | deadletter.FactRejected
    | deadletter.KeyResumed
    | deadletter.FactRetried
    | deadletter.FactDropped
    | ledger_import.ImportStarted
    | ledger_import.ImportKeysListed
    | ledger_import.ImportCompleted
    | installation.InstallationUpgraded
    | webhook.DeliveryRequested
    | webhook.RedeliveryRequested
    | webhook.DeliveryAttempted
    | seal.PartitionSealed
    | seal.PartitionTrimmed
)
"""Every event that may lie in the ledger."""

_RAISES_LEVEL: Final = (
    experiment.ExperimentSubmitted,
    installation.PoolUpgraded,
    directory.ChangeRequested,
)
_ANYWHERE: Final = (
    deadletter.FactRejected,
    deadletter.KeyResumed,
    deadletter.FactRetried,
    deadletter.FactDropped,
)
"""Types whose events name their topic and their key."""
_SUBJECTS: Final = (
    "checkpoint_id",
    "allocation_id",
    "trial_id",
    "experiment_id",
    "agent_id",
    "import_id",
    "webhook_id",
    "place",
    "topic",
    "pool",
    "ledger_id",
    "directory",
)


class Event(Struct, frozen=True, gc=False):
    """One event with its envelope.

    Attributes:
        id: unique and deterministic; the same event written twice has the same id.
        source: its writer, `/rung/searcher` or `/rung/agent/<agent_id>`.
        subject: the id of the narrowest thing that it is about.
        time: RFC 3339 in UTC; for people, never for decisions.
        actor: the id of the user who asked for it; None of what nobody asked for (what agents
            report, relays copy, policies retire), and of facts of releases that named nobody.
            What a decision leads to has the actor of the first fact on the way back by `cause`.
        onbehalfof: the id of the user that the actor acted for, if any.
        cause: the id of the event that it answers.
        causeposition, causeindex: of a decision, its fact's position and its index among the
            fact's decisions, counted from 0.
        origin, sequence: of a fact, its origin and the origin's own strictly growing number.
        traceparent: of the request that it follows from, if known; CloudEvents' extension for
            distributed tracing. For people, never for decisions.
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
    onbehalfof: str | None = None

    @property
    def type(self) -> str:
        """The versioned name of what happened."""
        return self.data.TYPE

    @property
    def topic(self) -> str:
        """Its topic; of a relayed decision, the topic that it is relayed to."""
        if isinstance(self.data, _ANYWHERE):
            return self.data.topic
        name = self.data.TOPIC
        if self.causeposition is None and TOPICS[name].holds == "decisions":
            found = relayed(type(self.data))
            return found.topic if found else name
        return name

    @property
    def key(self) -> str:
        """The key that chooses its partition."""
        if isinstance(self.data, _ANYWHERE):
            return self.data.key
        key: str = getattr(self.data, TOPICS[self.topic].key)
        return key


def relayed(kind: type[Payload]) -> Relayed | None:
    """Return where decisions of a type are relayed to, None if they are not."""
    return getattr(kind, "RELAYED", None)


def experiment_of(data: Payload) -> str | None:
    """Return the id of the experiment that the event is about, None if it is about none."""
    if isinstance(data, _ANYWHERE):
        return data.key if TOPICS[data.topic].key == "experiment_id" else None
    found: str | None = getattr(data, "experiment_id", None)
    if found is not None:
        return found
    allocation_id: str | None = getattr(data, "allocation_id", None)
    return None if allocation_id is None else allocation_id.partition(".")[0]


def level_of(data: Payload) -> int:
    """Return the logic level to which an event raises its key; 1, the lowest, if it does not."""
    return data.level if isinstance(data, _RAISES_LEVEL) else 1


def subject_of(data: Payload) -> str:
    """Return the id of the narrowest thing that the event is about."""
    if isinstance(data, directory.ChangeRequested | directory.DirectoryChanged):
        return subject_of_change(data.change)
    if isinstance(data, _ANYWHERE):
        return data.key
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
    onbehalfof: str | None = None,
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
        onbehalfof=onbehalfof,
    )


def decision(  # noqa: PLR0913 - the attributes of the envelope
    data: Payload,
    *,
    source: str,
    cause: Event,
    position: int,
    index: int,
    traceparent: str | None = None,
    request: Event | None = None,
) -> Event:
    """Wrap a decision; its id follows from the fact that caused it, so it is reproducible.

    It carries the time of its fact, because processors have no clock. Where the fact waited until
    an operator's request (`rung.events.deadletter`), position and index are those of the request.
    """
    name = f"{(request or cause).id}|{source}|{index}".encode()
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
