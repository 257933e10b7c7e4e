"""Types that several answers use."""

from typing import Annotated, Final, Literal

from msgspec import Meta

Time = Annotated[str, Meta(description="RFC 3339, UTC, to the millisecond")]

ExperimentPhase = Literal["active", "paused", "canceling", "completed", "errored", "canceled"]
ENDED: Final[frozenset[ExperimentPhase]] = frozenset({"completed", "errored", "canceled"})
TrialPhase = Literal[
    "waiting",
    "running",
    "resting",
    "paused",
    "stopping",
    "completed",
    "stopped",
    "errored",
    "canceled",
]
CheckpointPhase = Literal["stored", "retired", "deleted", "damaged"]
DeadLetterState = Literal["open", "retrying", "dropped", "taken"]
ReaderKind = Literal["processor", "relay", "sink", "projection"]
