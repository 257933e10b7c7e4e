"""What can be set about the metrics service."""

import math

from msgspec import Struct


class Settings(Struct, frozen=True, kw_only=True):
    """How the metrics service runs; none of it changes what it stores.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    flush_seconds: float = 1.0
    """How long a record waits at most until it is written; a query does not wait for it."""
    flush_bytes: int = 8 << 20
    """Records are written at once when so much of them has come together."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.flush_seconds) and self.flush_seconds > 0):
            raise ValueError(
                f"flush_seconds is {self.flush_seconds}: give the seconds that a record waits at "
                "most, such as 1"
            )
        if self.flush_bytes < 1:
            raise ValueError(
                f"flush_bytes is {self.flush_bytes}: give the size of a batch, such as 8388608"
            )
