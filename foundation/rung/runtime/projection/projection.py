"""The contract between a projection and the runtime."""

import sqlite3
from types import UnionType
from typing import ClassVar

from rung.events import Event, Payload


class Projection:
    """A read model: tables in SQLite, folded from a topic of facts and the decisions on them.

    `evolve` is called for each event of `handles`, in the order of causes and without repetitions,
    within a transaction of many. What it writes is committed together with the positions up to
    which the ledger was folded. It must depend on nothing but the tables and the event: then the
    tables are the same on every replica, and after every restart.

    A projection may keep rows of keys that are in use in memory: it writes what it changed in
    `flush`, which precedes each commit, and drops all of it in `forget`, after a rollback.

    An event that makes `evolve` raise changes nothing. That is noted in the same transaction, and
    the rest goes on; another release rebuilds the file.

    Attributes:
        name: names the file and the loops.
        facts: the topic whose facts it folds.
        decisions: topics of decisions about these facts, with the same key.
        streams: further topics, each of which is folded in its own order.
        handles: the union of the types that it folds; all others are skipped.
        version: of the tables and of what is folded into them; a file of another one is rebuilt.
        schema: SQL that creates the tables.
    """

    name: ClassVar[str]
    facts: ClassVar[str]
    decisions: ClassVar[tuple[str, ...]] = ()
    streams: ClassVar[tuple[str, ...]] = ()
    handles: ClassVar[UnionType | type[Payload]]
    version: ClassVar[int] = 1
    schema: ClassVar[str]

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Fold an event of a key into the tables."""
        raise NotImplementedError

    def flush(self, db: sqlite3.Connection) -> None:
        """Write to the tables what was changed in memory alone."""

    def forget(self) -> None:
        """Drop what is kept in memory: the tables were rolled back."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics that it follows, the facts first."""
        return (self.facts, *self.decisions, *self.streams)
