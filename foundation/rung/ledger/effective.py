"""The effective stream: which of a topic's records count.

A fact counts unless its origin's sequence was seen for its key before: then it was appended twice.
A decision counts if its cause is later than that of the last one of its key. Otherwise it was
appended twice, or by a second process that believed to own the partition and decided the same:
the first one counts. Nor does a rejection count of a key that stands still already, unless it
answers a request to go on. All who act on what they read, or count it, ask here; where they keep
what they have seen (in memory, in a snapshot, in tables) is theirs.
"""

from collections import defaultdict
from collections.abc import Hashable, MutableMapping
from typing import Final, TypeVar

from rung.events import Event
from rung.events.codec import Head
from rung.events.deadletter import FactRejected

K = TypeVar("K", bound=Hashable)
Cause = tuple[int, int]
"""Position of a fact, and which of its decisions it is."""
NO_CAUSE: Final = (-1, -1)


def cause_of(decision: Event | Head) -> Cause:
    """Return the cause of a decision."""
    assert decision.causeposition is not None, decision
    return decision.causeposition, decision.causeindex or 0


def is_new_decision(cause: Cause, causes: MutableMapping[K, Cause], key: K) -> bool:
    """Return whether a decision of a cause counts; then that is the last one of its key."""
    if cause <= causes.get(key, NO_CAUSE):
        return False
    causes[key] = cause
    return True


def answers_request(rejection: Event) -> bool:
    """Return whether a fact was rejected when a request had its key go on, not when it came.

    Only then does the rejection count if the key stands still already: another one was written by
    a process that did not know of the earlier rejection.
    """
    assert isinstance(rejection.data, FactRejected), rejection
    return rejection.causeposition != rejection.data.position


def is_new_fact(fact: Event, marks: MutableMapping[str, int]) -> bool:
    """Return whether a fact counts; then the mark of its origin moves."""
    if fact.origin is None or fact.sequence is None:
        return True
    if fact.sequence <= marks.get(fact.origin, -1):
        return False
    marks[fact.origin] = fact.sequence
    return True


class Effective:
    """What was seen of any topics, kept in memory."""

    def __init__(self) -> None:
        self._causes: dict[tuple[str, str], Cause] = {}
        self._marks: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)

    def is_new(self, topic: str, event: Event) -> bool:
        """Return whether an event, the next one of a topic, counts."""
        place = topic, event.key
        if event.causeposition is None:
            return is_new_fact(event, self._marks[place])
        return is_new_decision(cause_of(event), self._causes, place)
