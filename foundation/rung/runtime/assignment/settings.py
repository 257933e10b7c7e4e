"""Settings of the group of a service's replicas on Kafka."""

import os
import re
from collections.abc import Mapping
from typing import Final, Self

from msgspec import Struct

from rung.events import LedgerError

_SESSION: Final = "RUNG_KAFKA_SESSION_TIMEOUT_S"
_REBALANCE: Final = "RUNG_KAFKA_REBALANCE_TIMEOUT_S"


_CLIENT: Final = re.compile(r"rung-level-(\d+)")


def client_id_of(level: int) -> str:
    """Return a member's client id, which holds the logic level that the replica supports."""
    return f"rung-level-{level}"


def level_of_client(client_id: str) -> int:
    """Return the newest logic level of a replica; 1 where its client id names none."""
    found = _CLIENT.fullmatch(client_id)
    return 1 if found is None else int(found[1])


class GroupSettings(Struct, frozen=True, kw_only=True):
    """The timeouts of the group.

    Raises:
        LedgerError: one is out of range; the message names it and what would be right.
    """

    session_timeout_s: float = 8.0
    """A replica without heartbeats for this time loses its partitions. Brokers require 6 or more,
    unless their `group.min.session.timeout.ms` is lower."""
    rebalance_timeout_s: float = 6.0
    """How long a rebalance waits for a replica that is a member."""

    def __post_init__(self) -> None:
        for name, value in (
            (_SESSION, self.session_timeout_s),
            (_REBALANCE, self.rebalance_timeout_s),
        ):
            if not 1 <= value <= 300:
                raise LedgerError(f"{name} is {value:g}: give seconds between 1 and 300")

    @property
    def heartbeat_s(self) -> float:
        """The interval of heartbeats."""
        return min(self.session_timeout_s / 5, 2.0)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read RUNG_KAFKA_SESSION_TIMEOUT_S and RUNG_KAFKA_REBALANCE_TIMEOUT_S.

        Raises:
            LedgerError: one is no number, or out of range.
        """
        found = os.environ if environment is None else environment
        default = cls()
        return cls(
            session_timeout_s=_seconds(found, _SESSION, default.session_timeout_s),
            rebalance_timeout_s=_seconds(found, _REBALANCE, default.rebalance_timeout_s),
        )


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    try:
        return float(text) if text else default
    except ValueError:
        raise LedgerError(f"{name} is {text!r}: give seconds, such as {default:g}") from None
