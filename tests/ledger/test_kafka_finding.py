"""What differs from what a topic should be: how bad it is, and what may not be read."""

import pytest

from rung.ledger.kafka.topics import compare_settings

EXPECTED = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1000",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": "5000",
    "unclean.leader.election.enable": "false",
}


@pytest.mark.parametrize(
    ("setting", "found", "lasting", "grave"),
    [
        ("cleanup.policy", "compact", True, True),
        ("cleanup.policy", "compact,delete", False, True),
        ("max.message.bytes", "999", False, True),
        ("max.message.bytes", "1001", True, False),
        ("min.insync.replicas", "1", True, False),
        ("retention.bytes", "1000000", True, True),
        ("retention.bytes", "1000000", False, False),
        ("retention.ms", "4999", True, True),
        ("retention.ms", "4999", False, False),
        ("retention.ms", "5001", True, False),
        ("retention.ms", "-1", True, False),
        ("unclean.leader.election.enable", "true", False, True),
    ],
)
def test_what_is_grave(setting: str, found: str, lasting: bool, grave: bool) -> None:  # noqa: FBT001 - a table
    """What loses records that must last, and what refuses an event that should be taken."""
    (finding,) = compare_settings("t", EXPECTED, {**EXPECTED, setting: found}, lasting=lasting)
    assert (finding.setting, finding.expected, finding.found) == (
        setting,
        EXPECTED[setting],
        found,
    )
    assert finding.grave is grave


def test_as_it_should_be() -> None:
    """Nothing is found, whatever else the cluster tells."""
    assert not list(compare_settings("t", EXPECTED, {**EXPECTED, "x": "y"}, lasting=True))


def test_what_may_not_be_read() -> None:
    """A topic whose settings this user may not see is a finding, with the right to grant."""
    (finding,) = compare_settings("t", EXPECTED, None, lasting=True)
    assert str(finding) == (
        "t: configuration is hidden, should be legible: "
        "grant this user DESCRIBE_CONFIGS on the topic"
    )
    assert not finding.grave
