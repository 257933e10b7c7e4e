"""What happens to a checkpoint, from its manifest's writing to its deletion."""

from typing import ClassVar

from msgspec import Struct

from rung.events import topic
from rung.events.topic import Relayed


class CheckpointStored(Struct, frozen=True, kw_only=True):
    """A checkpoint is complete in the object store: its manifest, written last, is there."""

    TYPE: ClassVar[str] = "rung.checkpoint.stored.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc", "gateway")

    experiment_id: str
    trial_id: str
    run: int
    checkpoint_id: str
    steps_completed: int
    size_bytes: int
    files: int
    digest: str
    """SHA-256 of the manifest, which holds the digest of every file."""


class CheckpointDamaged(Struct, frozen=True, kw_only=True):
    """A run found a checkpoint damaged or missing, or one of its own could not be stored."""

    TYPE: ClassVar[str] = "rung.checkpoint.damaged.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc", "gateway")

    experiment_id: str
    trial_id: str
    run: int
    checkpoint_id: str
    reason: str


class CheckpointPinned(Struct, frozen=True, kw_only=True):
    """Another experiment starts from this checkpoint; it is never deleted."""

    TYPE: ClassVar[str] = "rung.checkpoint.pinned.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    experiment_id: str
    checkpoint_id: str
    by: str


class CheckpointReleased(Struct, frozen=True, kw_only=True):
    """The search, whose trials may start from each other's checkpoints, no longer needs this one.

    Until then none of its checkpoints is retired.
    """

    TYPE: ClassVar[str] = "rung.checkpoint.released.v1"
    TOPIC: ClassVar[str] = topic.SEARCHES
    WRITER: ClassVar[str] = "searcher"
    READERS: ClassVar[tuple[str, ...]] = ("searcher", "checkpoint-gc")
    RELAYED: ClassVar[Relayed] = Relayed(topic.EXPERIMENTS, "checkpoint-gc")

    experiment_id: str
    trial_id: str
    checkpoint_id: str


class CheckpointRetired(Struct, frozen=True, kw_only=True):
    """The retention policy no longer wants this checkpoint."""

    TYPE: ClassVar[str] = "rung.checkpoint.retired.v1"
    TOPIC: ClassVar[str] = topic.RETIREMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    experiment_id: str
    trial_id: str
    checkpoint_id: str
    reason: str


class CheckpointDeleted(Struct, frozen=True, kw_only=True):
    """A retired checkpoint's files are gone from the object store."""

    TYPE: ClassVar[str] = "rung.checkpoint.deleted.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("checkpoint-gc", "gateway")

    experiment_id: str
    trial_id: str
    checkpoint_id: str
