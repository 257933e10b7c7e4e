"""The timeouts of a group of replicas."""

import pytest

from rung.events import LedgerError
from rung.runtime.assignment.settings import GroupSettings


def test_defaults_and_environment() -> None:
    """What is not set is as it is good for brokers as they come."""
    assert GroupSettings.from_environment({}) == GroupSettings()
    found = GroupSettings.from_environment(
        {"RUNG_KAFKA_SESSION_TIMEOUT_S": "30", "RUNG_KAFKA_REBALANCE_TIMEOUT_S": "2.5"}
    )
    assert (found.session_timeout_s, found.rebalance_timeout_s) == (30.0, 2.5)


@pytest.mark.parametrize("session_s", [1.0, 6.0, 8.0, 300.0])
def test_heartbeats_fit_into_a_session(session_s: float) -> None:
    """Several may be lost before a replica is taken for dead."""
    settings = GroupSettings(session_timeout_s=session_s)
    assert settings.heartbeat_s <= session_s / 4


@pytest.mark.parametrize("value", ["x", "0", "-1", "301", "nan"])
@pytest.mark.parametrize("name", ["SESSION", "REBALANCE"])
def test_refused(name: str, value: str) -> None:
    """The variable is named, and what would be right."""
    with pytest.raises(LedgerError, match=f"RUNG_KAFKA_{name}_TIMEOUT_S is .*: give seconds"):
        GroupSettings.from_environment({f"RUNG_KAFKA_{name}_TIMEOUT_S": value})
