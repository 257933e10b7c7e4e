"""Settings of the gateway."""

import math
from typing import Final

from msgspec import Struct

from rung.gateway.identity.settings import IdentitySettings
from rung.gateway.requests.rate import Rates
from rung.gateway.requests.read_trail import ReadTrailSettings
from rung.runtime.http.limits import Limits
from rung.subscription.address import PUBLIC, AddressRule

MIB = 1024 * 1024
DAY_S: Final = 86_400
_DELAY_S_MAX: Final = 3_650 * DAY_S


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
    sweep_every: float = 30.0
    """Seconds between two looks for code that only deleted experiments had."""
    limits_after: float = 60.0
    """Seconds from the start to the first look for experiments that have used as much as they may:
    longer than agents take to come back, or to be found lost, after a standstill."""
    limits_every: float = 2.0
    """Seconds between two looks for experiments that have used as much as they may."""
    deletion_delay: float = 0.0
    """Seconds in which the deletion of an experiment can be taken back; 0: it is at once."""
    identity: IdentitySettings = IdentitySettings()
    """How people sign in."""
    webhooks: AddressRule = PUBLIC
    """Where webhooks may lead."""
    rates: Rates = Rates()
    """How many requests one token may send; by default any number."""
    read_trail: ReadTrailSettings | None = None
    """Where a line is written for each read; None: nowhere."""
    limits: Limits = Limits()
    """Of connections and of what their clients may take."""

    def __post_init__(self) -> None:
        for name in (
            "heartbeat",
            "write_timeout",
            "seen_timeout",
            "start_timeout",
            "sweep_every",
            "limits_every",
        ):
            value: float = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: give a number of seconds above 0")
        if not (math.isfinite(self.limits_after) and self.limits_after >= 0):
            raise ValueError(f"limits_after is {self.limits_after}: give seconds from 0 on")
        if not (math.isfinite(self.deletion_delay) and 0 <= self.deletion_delay <= _DELAY_S_MAX):
            raise ValueError(
                f"deletion_delay is {self.deletion_delay}: give seconds from 0 to {_DELAY_S_MAX}"
            )
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
