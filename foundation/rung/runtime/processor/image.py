"""What the fold of a partition knows: of each key, and of all of them as a snapshot has it."""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple

from msgspec import Struct, field

from rung.events import Event, Payload
from rung.events.envelope import experiment_of
from rung.ledger.effective import NO_CAUSE, Cause, is_new_fact
from rung.runtime.processor.processor import S

_TRACES_MAX: Final = 1_000
"""Experiments whose traces a key keeps; the oldest is removed first."""


class Stuck(Struct):
    """Where a key stands still: before a fact that was rejected."""

    rejection: str
    """Id of the decision that it was."""
    position: int
    """Of the fact."""
    reason: str


class KeyFold(Struct, Generic[S], omit_defaults=True):
    """What is known of one key."""

    state: S | None
    """None: the key has ended."""
    marks: dict[str, int] = field(default_factory=dict[str, int])
    """Origin → the highest sequence folded."""
    cause: Cause = NO_CAUSE
    """That of the last decision folded."""
    traces: dict[str, str] = field(default_factory=dict[str, str])
    """Experiment → the `traceparent` of the first fact about it that had one."""
    stuck: Stuck | None = None
    """None: the key goes on."""

    def is_new(self, fact: Event) -> bool:
        """Return whether a fact is no repetition; note it and its trace."""
        if not is_new_fact(fact, self.marks):
            return False
        if fact.traceparent is not None:
            self._remember(fact, fact.traceparent)
        return True

    def _remember(self, fact: Event, traceparent: str) -> None:
        experiment_id = experiment_of(fact.data)
        if experiment_id is None or experiment_id in self.traces:
            return
        self.traces[experiment_id] = traceparent
        if len(self.traces) > _TRACES_MAX:
            del self.traces[next(iter(self.traces))]

    def trace_of(self, data: Payload, cause: Event) -> str | None:
        """Return the trace of a decision.

        It is that of its cause, unless the cause is about another experiment: a slot that one
        experiment releases goes to another one, whose trace is another.
        """
        if not self.traces and cause.traceparent is None:
            return None
        experiment_id = experiment_of(data)
        if cause.traceparent is not None and experiment_id in {None, experiment_of(cause.data)}:
            return cause.traceparent
        return None if experiment_id is None else self.traces.get(experiment_id)

    def end(self) -> None:
        """Keep what is needed of a key that has ended."""
        self.state = None
        self.marks = {}
        self.traces = {}


class Place(NamedTuple):
    """A position in both topics."""

    facts: int
    decisions: int


class Torn(Struct, frozen=True):
    """A key whose state, or whose place to go on from, is to be brought from what is on record."""

    rejection: str = ""
    """Id of the decision that tore it; empty where the key is left alone."""
    since: int = 0
    """The position of facts up to which a snapshot has to reach, for `begin` to hold."""
    begin: Place = Place(0, 0)
    """Before its first fact since that snapshot, and that fact's decisions."""
    end: Place = Place(0, 0)
    """Behind the rejected fact, or the request, and the decision that rejects it."""


class Parked(Struct, Generic[S]):
    """A key that this release leaves alone, as it was some time before it had to."""

    facts: int = 0
    """Position of the next fact to fold."""
    decisions: int = 0
    """Position behind the decisions that are folded."""
    known: KeyFold[S] | None = None
    reason: str = ""
    """Why it is left alone."""
    level: int = 0
    """The logic level that the release did not support; 0: there was another reason."""


class Image(Struct, Generic[S]):
    """A partition's fold as a snapshot left it."""

    facts: int = 0
    """Position of the next fact to fold."""
    decisions: int = 0
    """Position behind the decisions that are folded, all of them."""
    keys: dict[str, KeyFold[S]] = field(default_factory=dict[str, KeyFold[S]])
    ahead: dict[str, int] = field(default_factory=dict[str, int])
    """Key → the position of its next fact to fold, of keys that were saved later than others."""
    parked: dict[str, Parked[S]] = field(default_factory=dict[str, Parked[S]])
    """Keys that are left alone."""

    def next_of(self, key: str) -> int:
        """Return the position of the next fact of a key to fold."""
        return self.ahead.get(key, self.facts)

    def of(self, key: str) -> Parked[S]:
        """Return from where a key is to go on."""
        parked = self.parked.get(key)
        return parked or Parked(self.next_of(key), self.decisions, self.keys.get(key))

    def only(self, keys: Sequence[str], begin: Place) -> "Image[S]":
        """Return the image of some of the keys, to be folded from a place on."""
        return Image(
            begin.facts,
            begin.decisions,
            {key: self.keys[key] for key in keys if key in self.keys},
            {key: self.next_of(key) for key in keys},
            {key: self.parked[key] for key in keys if key in self.parked},
        )

    def release(self, level: int) -> None:
        """Let parked keys go on, except those of a newer logic level.

        Folding begins where the earliest of them stood; the other keys skip what they have seen.
        """
        released = {key: it for key, it in self.parked.items() if it.level <= level}
        if not released:
            return
        for key in self.keys:
            self.ahead.setdefault(key, self.facts)
        for key, parked in released.items():
            del self.parked[key]
            self.ahead[key] = parked.facts
            if parked.known is not None:
                self.keys[key] = parked.known
            self.facts = min(self.facts, parked.facts)
            self.decisions = min(self.decisions, parked.decisions)
