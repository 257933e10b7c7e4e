"""Settings of the scheduler."""

import math

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    """How the scheduler runs; none of it changes what it decides.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    agent_timeout: float = 30.0
    """Seconds of silence after which an agent is lost."""
    snapshot_every: int = 10_000
    """Facts between two snapshots of a partition."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.agent_timeout) and self.agent_timeout > 0):
            raise ValueError(
                f"agent_timeout is {self.agent_timeout}: give the seconds of silence after which "
                "an agent is lost, such as 30"
            )
        if self.snapshot_every < 1:
            raise ValueError(
                f"snapshot_every is {self.snapshot_every}: give the number of facts between two "
                "snapshots, such as 10000"
            )
