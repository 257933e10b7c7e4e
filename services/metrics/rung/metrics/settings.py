"""Settings of the metrics service."""

import math

from msgspec import Struct

from rung.metrics.retention import DAYS_MAX


class Settings(Struct, frozen=True, kw_only=True):
    """How the metrics service runs; only the retention changes what it stores.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    flush_seconds: float = 1.0
    """Longest wait of a record until it is written; a query writes what waits."""
    flush_bytes: int = 8 << 20
    """Size of a batch that is written at once."""
    metrics_days: int | None = None
    """Days after which reports are dropped, 0: never, None: unchanged."""
    logs_days: int | None = None
    """Days after which printed lines are dropped, 0: never, None: unchanged."""
    logs_total_bytes: int | None = None
    """Most bytes of text of all printed lines; beyond, the oldest logs go; None: no limit."""

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
        if self.logs_total_bytes is not None and self.logs_total_bytes < 1:
            raise ValueError(
                f"logs_total_bytes is {self.logs_total_bytes}: give the bytes that all logs may "
                "have, such as 10737418240"
            )
        for name in ("metrics_days", "logs_days"):
            days = getattr(self, name)
            if days is not None and not 0 <= days <= DAYS_MAX:
                raise ValueError(
                    f"{name} is {days}: give the days after which rows are dropped, up to "
                    f"{DAYS_MAX}, or 0 to keep them for ever"
                )
