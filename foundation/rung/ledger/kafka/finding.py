"""What differs between a ledger's topics as they are and as they should be, and how bad it is."""

from collections.abc import Mapping
from typing import Final

import msgspec

_UNLIMITED: Final = -1


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a topic that differs from what it should be, or cannot be known."""

    topic: str
    """By its name on the cluster."""
    setting: str
    expected: str
    found: str
    grave: bool
    """Whether the ledger cannot be used like this, or will lose what it must keep."""
    unknown: bool = False
    """Whether brokers of this kind do not tell it: nobody can say whether it differs."""

    def __str__(self) -> str:
        return f"{self.topic}: {self.setting} is {self.found}, should be {self.expected}"


def compare_shape(
    full: str, *, found: int, partitions: int | None, replicas: list[int], copies: int
) -> list[Finding]:
    """Compare how a topic is divided and copied.

    Args:
        full: the topic, by its name on the cluster.
        found: how many partitions it has, 0 if it is not there.
        partitions: how many it should have, None if any number will do.
        replicas: on how many brokers each of them lies.
        copies: on how many they should.
    """
    if not found:
        return [
            Finding(topic=full, setting="topic", expected="there", found="missing", grave=True)
        ]
    findings = []
    if partitions not in {None, found}:
        findings.append(
            Finding(
                topic=full,
                setting="partitions",
                expected=str(partitions),
                found=str(found),
                grave=True,
            )
        )
    fewest = min(replicas)
    if fewest < copies:
        findings.append(
            Finding(
                topic=full,
                setting="replication",
                expected=str(copies),
                found=str(fewest),
                grave=False,
            )
        )
    return findings


def compare_settings(
    full: str, expected: Mapping[str, str], found: Mapping[str, str] | None, *, lasting: bool
) -> list[Finding]:
    """Compare the settings of a topic.

    Args:
        full: the topic, by its name on the cluster.
        expected: what they should be.
        found: what the cluster tells of them, None if this user may not read them.
        lasting: whether what the topic holds is kept for ever unless somebody decides otherwise.
    """
    if found is None:
        return [
            Finding(
                topic=full,
                setting="configuration",
                expected="legible: grant this user DESCRIBE_CONFIGS on the topic",
                found="hidden",
                grave=False,
            )
        ]
    findings = [
        Finding(
            topic=full,
            setting=setting,
            expected=value,
            found=found[setting],
            grave=_grave(setting, value, found[setting], lasting=lasting),
        )
        for setting, value in expected.items()
        if setting in found and found[setting] != value
    ]
    untold = [setting for setting in expected if setting not in found]
    if untold:
        findings.append(
            Finding(
                topic=full,
                setting="configuration",
                expected=", ".join(f"{setting} {expected[setting]}" for setting in untold),
                found="not told by this broker",
                grave=False,
                unknown=True,
            )
        )
    return findings


def _grave(setting: str, expected: str, found: str, *, lasting: bool) -> bool:
    """Return whether a setting that differs costs records, or stops whoever writes some.

    A topic that takes less than it should refuses an event for good: what an agent reported is
    lost then.
    """
    match setting:
        case "cleanup.policy" | "unclean.leader.election.enable":
            return True
        case "max.message.bytes":
            return int(found) < int(expected)
        case "retention.ms" | "retention.bytes":
            return lasting and _shorter(int(found), int(expected))
        case _:
            return False


def _shorter(found: int, expected: int) -> bool:
    return found != _UNLIMITED and (expected == _UNLIMITED or found < expected)
