"""The contract between a processor and the runtime."""

from types import UnionType
from typing import Any, Protocol, TypeVar, get_args, runtime_checkable

from rung.events import Payload


class Leveled(Protocol):
    """A state of a key, with the logic level at which the key is decided.

    `evolve` takes it from the fact that raises it (`rung.events.envelope.level_of`); `evolve` and
    `decide` branch on it where a release changed decisions.
    """

    level: int


S = TypeVar("S", bound=Leveled)
R_co = TypeVar("R_co", bound=Leveled, covariant=True)


class Processor(Protocol[S]):
    """A deterministic state machine per key: two functions, without I/O, clock or randomness.

    The runtime folds a fact (`evolve`), decides (`decide`), appends the decisions, and folds them
    (`evolve`, once per decision), before it turns to the next fact of the same key. Events of
    types outside `handles` are skipped.

    Attributes:
        name: `searcher`, `scheduler`, `checkpoint-gc`; names the source of the decisions.
        facts: the topic that it folds.
        decisions: the topic that it alone writes.
        handles: the union of the types of facts and decisions that it folds.
        level: the newest logic level; it supports all up to it. A key of a newer one is left alone
            until a replica of a newer release starts.
        version: of the state's layout; a snapshot of another version is not read.
        state_type: the state's class, a msgspec Struct, for snapshots.
    """

    name: str
    facts: str
    decisions: str
    handles: UnionType
    level: int
    version: int
    state_type: type[S]

    def initial(self, key: str) -> S:
        """Return the state of a new key."""
        ...

    def evolve(self, state: S, event: Any) -> None:
        """Fold a fact or a decision, one of `handles`, into the state."""
        ...

    def decide(self, state: S, fact: Any) -> list[Payload]:
        """Return the decisions on a fact that was just folded; only reads the state."""
        ...

    def ended(self, state: S) -> bool:
        """Return whether no later fact changes or decides anything; the state is dropped then.

        The facts that reopen a key (`Reopening`) are the exception.
        """
        ...


@runtime_checkable
class Reopening(Protocol[R_co]):
    """A processor that decides some facts also about keys that have ended.

    Attributes:
        reopened_by: the union of these types of facts.
    """

    reopened_by: UnionType

    def reopened(self, key: str) -> R_co:
        """Return the state in which such a fact finds a key that has ended."""
        ...


def types_of(handles: UnionType | type[Payload]) -> frozenset[str]:
    """Return the type strings of a union of events, or of one."""
    kinds = get_args(handles) if isinstance(handles, UnionType) else (handles,)
    return frozenset(kind.TYPE for kind in kinds)
