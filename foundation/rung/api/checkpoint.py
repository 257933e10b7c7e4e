"""Answers about checkpoints."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from rung.api.listing import Listing
from rung.api.states import CheckpointPhase, Time
from rung.events.trial import MetricValue


class Checkpoint(Struct, kw_only=True):
    """A checkpoint, without its files."""

    id: str
    experiment_id: str
    trial_id: str
    run: int
    state: CheckpointPhase
    steps_completed: int
    metrics: Annotated[
        dict[str, MetricValue], Meta(description="its trial's validation at this step")
    ]
    size_bytes: int
    file_count: int
    digest: Annotated[str, Meta(description="SHA-256 of the manifest")]
    stored_at: Time
    deleted_at: Time | None
    reason: Annotated[str | None, Meta(description="why it is retired, deleted or damaged")]
    pinned_by: Annotated[list[str], Meta(description="experiments that start from it")]


class CheckpointFile(Struct, kw_only=True):
    """One file of a checkpoint, with the digest in its manifest."""

    name: str
    size_bytes: int
    blake3: Annotated[str | None, Meta(description="BLAKE3 of its bytes")] = None


class CheckpointDetail(Checkpoint, kw_only=True):
    """A checkpoint with its files; a deleted one has none."""

    files: list[CheckpointFile]
    metadata: dict[str, Any]


class CheckpointList(Listing[Checkpoint], kw_only=True):
    """A page of checkpoints, in the order of their arrival."""

    items: list[Checkpoint]
    next_cursor: str | None
