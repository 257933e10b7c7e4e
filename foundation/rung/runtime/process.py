"""The contract between a decider and the loop that hosts it."""

from typing import Protocol, TypeVar

from rung.events import Payload

S = TypeVar("S")


class Process(Protocol[S]):
    """A decider: two functions over a state, without I/O, clock or randomness.

    The host folds a fact (`evolve`), asks what follows from it (`decide`), appends that, and
    folds it (`evolve`, once per decision), before it turns to the next fact of the same key.
    Facts that are of no concern to the process are passed in all the same and change nothing.

    Attributes:
        name: `searcher`, `scheduler`, `checkpoint-gc`; names the source of the decisions.
        facts: the topic it folds.
        decisions: the topic it alone writes.
        version: of the snapshot's layout; a snapshot of another version is not read.
        state_type: the state's class, a msgspec Struct, so that it can be written as a snapshot.
    """

    name: str
    facts: str
    decisions: str
    version: int
    state_type: type[S]

    def initial(self, key: str) -> S:
        """Return the state of a key of which nothing is known."""
        ...

    def evolve(self, state: S, event: Payload) -> None:
        """Fold a fact or a decision into the state."""
        ...

    def decide(self, state: S, fact: Payload) -> list[Payload]:
        """Return what follows from a fact that was just folded; reads the state only."""
        ...
