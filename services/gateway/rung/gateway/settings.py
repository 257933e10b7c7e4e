"""Settings of the gateway."""

import math

from msgspec import Struct

from rung.runtime.http.limits import Limits

MIB = 1024 * 1024


class Settings(Struct, frozen=True, kw_only=True):
    """Limits and time-outs; none of them changes what is on record.

    Raises:
        ValueError: a value is out of range; the message names it and what would be right.
    """

    host_names: tuple[str, ...] = ()
    """Names under which it answers besides those of the loopback interface."""
    config_bytes_max: int = MIB
    """Largest experiment file."""
    code_bytes_max: int = 95 * MIB
    """Largest code archive."""
    heartbeat: float = 15.0
    """Seconds of silence after which a stream sends a comment."""
    write_timeout: float = 30.0
    """Seconds that a stream's client may take for what it was sent, before it is cut off."""
    seen_timeout: float = 5.0
    """Seconds that an answer waits for the projections to show what was written."""
    start_timeout: float = 2.0
    """Seconds that the start waits for the projections; then they catch up behind the answers."""
    limits: Limits = Limits()
    """Of connections and of what their clients may take."""

    def __post_init__(self) -> None:
        for name in ("heartbeat", "write_timeout", "seen_timeout", "start_timeout"):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: give a number of seconds above 0")
        for name in ("config_bytes_max", "code_bytes_max"):
            number: int = getattr(self, name)
            if number < 1:
                raise ValueError(f"{name} is {number}: give a whole number from 1 on")
        for host in self.host_names:
            if not host or "/" in host or host != host.strip():
                raise ValueError(
                    f"host_names has {host!r}: give names such as rung.example.org, "
                    "without http:// and port"
                )
