"""Settings of checkpoint-gc."""

import math

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    """How checkpoint-gc runs; none of it changes what it decides.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    retry_min: float = 1.0
    """Seconds until a deletion that the store refused is tried again; doubled each time."""
    retry_max: float = 60.0
    """Most seconds between two tries."""
    snapshot_every: int = 10_000
    """Facts between two snapshots of a partition."""
    due_every: float = 2.0
    """Seconds between two looks for deletions that cannot be taken back any more."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.retry_min) and self.retry_min > 0):
            raise ValueError(
                f"retry_min is {self.retry_min}: give the seconds until a deletion is tried "
                "again, such as 1"
            )
        if not (math.isfinite(self.retry_max) and self.retry_max >= self.retry_min):
            raise ValueError(
                f"retry_max is {self.retry_max}: give the most seconds between two tries, not "
                f"less than retry_min ({self.retry_min}), such as 60"
            )
        if not (math.isfinite(self.due_every) and self.due_every > 0):
            raise ValueError(f"due_every is {self.due_every}: give seconds, such as 2")
        if self.snapshot_every < 1:
            raise ValueError(
                f"snapshot_every is {self.snapshot_every}: give the number of facts between two "
                "snapshots, such as 10000"
            )


class Sealing(Struct, frozen=True, kw_only=True):
    """Whether and how the ledger is sealed.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    key: str | None
    """Names the installation's key; None: nothing is sealed."""
    every_s: float
    """Seconds between two seals of a partition."""
    anchor: str | None
    """A file or an URL that gets the signed heads as well."""
    cluster: bool
    """Whether the ledger is on Kafka, where a missing key is logged as an error."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.every_s) and self.every_s > 0):
            raise ValueError(f"seal_every is {self.every_s}: give seconds, such as 5")
