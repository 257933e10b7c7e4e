"""What can be set about an archive; none of it changes what is read from it."""

import math

from msgspec import Struct

MIB = 1 << 20


class ArchiveSettings(Struct, frozen=True, kw_only=True):
    """How an archive is written.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    every_s: float = 300.0
    """Seconds between two looks for what is new: the age that records reach outside of it."""
    segment_bytes: int = 8 * MIB
    """A segment is cut when its records' lines, unpacked, are as large; a tenth of it packed."""
    parallel: int = 2
    """How many segments are made at once; each takes memory."""
    retry_s: float = 60.0
    """Most seconds between two tries while the store refuses."""

    def __post_init__(self) -> None:
        for name in ("every_s", "retry_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: give seconds, such as 60")
        if self.segment_bytes < 1:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}: give a size, such as {8 * MIB}"
            )
        if not 1 <= self.parallel <= 64:
            raise ValueError(f"parallel is {self.parallel}: give a number from 1 to 64")
