"""Failures: why trials errored, grouped by what their causes have in common.

The searcher decides the text of an experiment's end with these functions, so a change of what they
return is a change of decisions (`rung.events.installation.LEVEL`).
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

GROUPS_MAX: Final = 64
"""How many different causes of an experiment are counted; what comes after them is not."""
CHARACTERS_MAX: Final = 240
"""How much of a cause a sentence quotes."""

_PARTICULAR: Final = re.compile(
    r"""
    (?P<path> (?:/[^\s/:'",;()\[\]]+)+ (?=/) )  # folders of a path, not its last part
    | \b0x[0-9a-fA-F]+\b
    | \b(?=[0-9a-f-]*\d)[0-9a-f]{8}[0-9a-f-]*\b  # digests, UUIDs
    | [-+]? (?:\d+\.?\d*|\.\d+) (?:[eE][-+]?\d+)?
    """,
    re.VERBOSE,
)


class Failure(Struct, frozen=True):
    """Trials that errored for causes that are alike."""

    cause: str
    """Of the first of them."""
    trial_id: str
    """The first of them."""
    trials: int
    """How many there are."""


def pattern_of(cause: str) -> str:
    """Return a cause without numbers, addresses and folders, in which alike causes differ."""
    return _PARTICULAR.sub(lambda found: "" if found["path"] else "#", cause)


def add_failure(failures: Mapping[str, Failure], cause: str, trial_id: str) -> dict[str, Failure]:
    """Return failures by pattern with one more trial that errored."""
    pattern = pattern_of(cause)
    known = failures.get(pattern)
    if known is None and len(failures) >= GROUPS_MAX:
        return dict(failures)
    if known is not None:
        return {**failures, pattern: Failure(known.cause, known.trial_id, known.trials + 1)}
    return {**failures, pattern: Failure(cause, trial_id, 1)}


def by_frequency(failures: Mapping[str, Failure]) -> list[Failure]:
    """Return the failures, the commonest first; of equally common ones the earlier."""
    return sorted(failures.values(), key=lambda failure: -failure.trials)


def failed_sentence(trials: int, errored: int, failures: Mapping[str, Failure]) -> str:
    """Return how many trials errored, and the commonest cause; empty if none is known.

    Args:
        trials: how many trials there are.
        errored: how many of them errored.
        failures: why, by pattern.
    """
    if not failures:
        return ""
    first = by_frequency(failures)[0]
    which = f"{errored} of {trials} trials"
    if errored == trials:
        which = "the only trial" if trials == 1 else f"all {trials} trials"
    most = "" if first.trials == errored else f", {first.trials} of them"
    return f"{which} errored{most}: {shortened(first.cause)} ({first.trial_id})"


def shortened(cause: str) -> str:
    """Return a cause in one line, and as long as a sentence can quote it."""
    line = " ".join(cause.split())
    return line if len(line) <= CHARACTERS_MAX else f"{line[: CHARACTERS_MAX - 1]}…"
