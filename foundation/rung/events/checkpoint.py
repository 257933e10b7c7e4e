"""Events of a checkpoint, from its manifest's writing to its deletion."""

from typing import ClassVar

from msgspec import Struct, field

from rung.events import topic
from rung.events.directory import ChangeRequested
from rung.events.experiment import SearchDecision
from rung.events.topic import Relayed
from rung.events.trial import RunReport


class CheckpointStored(RunReport, frozen=True, kw_only=True):
    """A checkpoint is complete in the object store: its manifest, written last, is there."""

    TYPE: ClassVar[str] = "rung.checkpoint.stored.v1"

    checkpoint_id: str
    steps_completed: int
    size_bytes: int
    files: int
    digest: str
    """SHA-256 of the manifest, which holds the digest of every file."""


class CheckpointDamaged(RunReport, frozen=True, kw_only=True):
    """A run found a checkpoint damaged or missing, or one of its own could not be stored."""

    TYPE: ClassVar[str] = "rung.checkpoint.damaged.v1"

    checkpoint_id: str
    reason: str


class CheckpointPinned(Struct, frozen=True, kw_only=True):
    """Another experiment starts from this checkpoint; it stays unless a user deletes it."""

    TYPE: ClassVar[str] = "rung.checkpoint.pinned.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    experiment_id: str
    checkpoint_id: str
    by: str


class PinAnswered(Struct, frozen=True, kw_only=True):
    """It is decided whether a pinned checkpoint stays, or was on its way out before the pin."""

    TYPE: ClassVar[str] = "rung.checkpoint.pin_answered.v1"
    TOPIC: ClassVar[str] = topic.RETIREMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    experiment_id: str
    checkpoint_id: str
    by: str
    """As in the pin."""
    refused: str
    """Why it does not stay; empty: it stays."""


class CheckpointDeletionRequested(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user asked to delete a checkpoint.

    It stays if a trial may still resume from it, or another experiment that is not in `despite`
    starts from it.
    """

    TYPE: ClassVar[str] = "rung.checkpoint.deletion_requested.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    experiment_id: str
    trial_id: str
    checkpoint_id: str
    despite: list[str] = field(default_factory=list)
    """Experiments that started from it, as the user was shown them."""
    area: str = ""
    """The storage area of the experiment's checkpoints, which is forgotten once it has ended."""


class CheckpointReleased(SearchDecision, frozen=True, kw_only=True):
    """No further trial of the search will start from this checkpoint.

    A search whose trials may start from each other's checkpoints holds all of them until then.
    """

    TYPE: ClassVar[str] = "rung.checkpoint.released.v1"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc")
    RELAYED: ClassVar[Relayed] = Relayed(topic.EXPERIMENTS, "checkpoint-gc")

    trial_id: str
    checkpoint_id: str


class CheckpointRetired(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The retention policy no longer keeps this checkpoint, or a user asked to delete it."""

    TYPE: ClassVar[str] = "rung.checkpoint.retired.v1"
    TOPIC: ClassVar[str] = topic.RETIREMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    experiment_id: str
    trial_id: str
    checkpoint_id: str
    reason: str
    area: str = ""
    """The storage area that it lies in."""


class CheckpointDeleted(Struct, frozen=True, kw_only=True):
    """A retired checkpoint's files were deleted from the object store."""

    TYPE: ClassVar[str] = "rung.checkpoint.deleted.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    experiment_id: str
    trial_id: str
    checkpoint_id: str


class CheckpointHeld(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """This checkpoint stays for a version of a model, until the directory releases it."""

    TYPE: ClassVar[str] = "rung.checkpoint.held.v1"
    TOPIC: ClassVar[str] = topic.RETIREMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc",)

    experiment_id: str
    checkpoint_id: str
    model_version_id: str
    area: str = ""
    """The storage area that it lies in."""
    request: ChangeRequested
    """The request to register the version."""


class CheckpointHoldRefused(Struct, frozen=True, kw_only=True):
    """A version of a model was to be registered, and its checkpoint is not to stay."""

    TYPE: ClassVar[str] = "rung.checkpoint.hold_refused.v1"
    TOPIC: ClassVar[str] = topic.RETIREMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc",)

    experiment_id: str
    checkpoint_id: str
    reason: str
    request: ChangeRequested
