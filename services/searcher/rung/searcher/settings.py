"""Settings of the searcher."""

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    """How the searcher runs; none of it changes what it decides.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    snapshot_every: int = 10_000
    """Facts between two snapshots of a partition."""

    def __post_init__(self) -> None:
        if self.snapshot_every < 1:
            raise ValueError(
                f"snapshot_every is {self.snapshot_every}: give the number of facts between two "
                "snapshots, such as 10000"
            )
