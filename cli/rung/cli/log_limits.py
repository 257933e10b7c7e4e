"""How much of what trials print one machine keeps."""

from typing import NamedTuple


class LogLimits(NamedTuple):
    """What was set for the installation; None where nothing was."""

    max_bytes: int | None = None
    """Of the log of a run."""
    keep_days: int | None = None
    """0: for ever."""
