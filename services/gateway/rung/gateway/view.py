"""The contract between a read model and the loop that follows the ledger for it."""

from typing import Protocol, TypeVar

from rung.events import Event

S = TypeVar("S")


class View(Protocol[S]):
    """A read model: a pure fold over one topic of facts and the decisions on them, key by key.

    Attributes:
        name: names the snapshots.
        facts: the topic whose facts it folds.
        decisions: topics of decisions about these facts, with the same key.
        version: of the snapshot's layout; a snapshot of another version is not read.
        state_type: the state's class, a msgspec Struct.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - see Attributes

    @property
    def facts(self) -> str: ...  # noqa: D102 - see Attributes

    @property
    def decisions(self) -> tuple[str, ...]: ...  # noqa: D102 - see Attributes

    @property
    def version(self) -> int: ...  # noqa: D102 - see Attributes

    @property
    def state_type(self) -> type[S]: ...  # noqa: D102 - see Attributes

    def initial(self, key: str) -> S:
        """Return the state of a key of which nothing is known."""
        ...

    def evolve(self, state: S, event: Event) -> None:
        """Fold a fact or a decision into the state."""
        ...
