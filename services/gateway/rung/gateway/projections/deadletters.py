"""The projection of dead letters: messages that a reader rejected, and their states.

A fact that a processor rejected is one, too, though its rejection is a decision and what is asked
of it a fact (`rung.events.deadletter`). These lie on different topics, so they are folded in any
order. Of several requests about one rejection the first has an effect. It is *taken* once its key
stands still because of it no more; a rejection of the same fact once more makes it open again.

One of a relay or sink is *open* until an operator requests something. After a request to retry it
is *retrying* until its reader answers: then it is *taken*, or open again with the newer reason. A
reader's first rejection of a message is repeated, under one number, whenever it is read, and
counts once; a rejection that answers a request has a number of its own. One that is *dropped*
stays so.

What the gateway's projections could not fold is on record in their files alone, which each replica
has of its own: a gateway lists what it does not show itself (`letters_of`). Of these, what was
dropped is here.
"""

import sqlite3
from collections.abc import Container, Iterable
from typing import Final, Literal, assert_never

from msgspec import Struct

from rung.events import Event, topic
from rung.events.deadletter import (
    FactDropped,
    FactRejected,
    FactRetried,
    KeyResumed,
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.events.topic import DECISIONS, FACTS_OF
from rung.ledger.effective import answers_request
from rung.runtime.projection import Projection
from rung.runtime.projection.merge import Rejection

_VALUE_LENGTH: Final = 4_096

Request = MessageRetryRequested | MessageDropped | FactRetried | FactDropped
DeadLetterState = Literal["open", "retrying", "dropped", "taken"]
_SETTLED: Final = frozenset({"dropped", "taken"})
_UNANSWERED: Final = (
    "SELECT rejection FROM letters WHERE key = ? AND reader = ? AND id != ?"
    " AND rejection IS NOT NULL AND NOT answered"
)
"""The rejection because of which a key stands still."""
_FIELDS: Final = "at, topic, partition, position, key, reader, reason, value, state, rejection"
_SCHEMA: Final = """
CREATE TABLE letters (
    id TEXT PRIMARY KEY,
    at TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    position INTEGER NOT NULL, key TEXT NOT NULL, reader TEXT NOT NULL, reason TEXT NOT NULL,
    value TEXT NOT NULL, state TEXT NOT NULL, rejection TEXT, answered INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX letters_by_time ON letters (at, id);
CREATE INDEX letters_by_state ON letters (state, at, id);
CREATE INDEX letters_by_rejection ON letters (rejection);
CREATE INDEX letters_by_key ON letters (key, reader);
-- `rejection`: its id; of a message that is dropped, the letter's.
CREATE TABLE asked (rejection TEXT PRIMARY KEY, what TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE requests (origin TEXT PRIMARY KEY, wish TEXT NOT NULL) WITHOUT ROWID;
"""


class DeadLetter(Struct):
    """One rejected message."""

    at: str
    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str
    state: DeadLetterState = "open"
    rejection: str | None = None
    """Id of the processor's decision; None where the reader is no processor."""

    @property
    def id(self) -> str:
        """Its id, see `id_of`."""
        return id_of(self)

    @property
    def settled(self) -> bool:
        """Whether its state is final."""
        return self.state in _SETTLED


class DeadLetterProjection(Projection):
    """The fold of rejections, and of what is asked about them."""

    name = "deadletters"
    facts = topic.DEADLETTER
    streams = (*FACTS_OF, *DECISIONS)
    handles = (
        MessageRejected
        | MessageRetryRequested
        | MessageDropped
        | MessageTaken
        | FactRejected
        | KeyResumed
        | FactRetried
        | FactDropped
    )
    version = 5
    schema = _SCHEMA

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:  # noqa: ARG002 - the key is in the event
        """Fold a rejection, a request, or its answer."""
        data = event.data
        match data:
            case MessageRejected():
                _reject(db, event, data)
            case FactRejected() if not answers_request(event) and _is_stuck(db, data):
                pass
            case FactRejected():
                _answer(db, data.reader, data.key, id_of(data))
                _reject(db, event, data)
                _update(db, event.id)
            case KeyResumed():
                _answer(db, data.reader, data.key)
            case FactRetried() | FactDropped():
                _note(db, event, data)
                what = "drop" if isinstance(data, FactDropped) else "retry"
                db.execute("INSERT OR IGNORE INTO asked VALUES (?, ?)", (data.rejection, what))
                _update(db, data.rejection)
            case MessageRetryRequested() | MessageDropped():
                _note(db, event, data)
                if isinstance(data, MessageDropped):
                    db.execute("INSERT OR IGNORE INTO asked VALUES (?, 'drop')", (id_of(data),))
                _settle(db, data, "dropped" if isinstance(data, MessageDropped) else "retrying")
            case MessageTaken():
                _settle(db, data, "taken")
            case _:
                raise AssertionError(data)


def id_of(message: DeadLetter | MessageRejected | FactRejected | Request | MessageTaken) -> str:
    """Return the id of a dead letter: its reader, and the position of the message."""
    name = FACTS_OF[message.topic] if isinstance(message, FactRejected) else message.topic
    return f"{message.reader}/{name}/{message.partition}/{message.position}"


def request_text(data: Request) -> str:
    """Return a request in words, by which a repetition of it is recognized."""
    match data:
        case MessageRetryRequested() | FactRetried():
            return f"retry {id_of(data)}"
        case MessageDropped() | FactDropped():
            return f"drop {id_of(data)}"
        case _:
            assert_never(data)


def _reject(db: sqlite3.Connection, event: Event, data: MessageRejected | FactRejected) -> None:
    is_fact = isinstance(data, FactRejected)
    name = FACTS_OF[data.topic] if is_fact else data.topic
    db.execute(
        f"INSERT INTO letters (id, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', ?)"  # noqa: S608 - named above
        " ON CONFLICT DO UPDATE SET at = excluded.at,"
        " reason = excluded.reason, value = excluded.value,"
        " rejection = excluded.rejection, answered = 0,"
        " state = CASE state WHEN 'dropped' THEN 'dropped' ELSE 'open' END",
        (
            id_of(data),
            event.time,
            name,
            data.partition,
            data.position,
            data.key,
            data.reader,
            data.reason,
            data.value[:_VALUE_LENGTH],
            event.id if is_fact else None,
        ),
    )


def _is_stuck(db: sqlite3.Connection, data: FactRejected) -> bool:
    """Return whether the key of a rejected fact stands still because of an earlier rejection."""
    return bool(db.execute(_UNANSWERED, (data.key, data.reader, "")).fetchone())


def _answer(db: sqlite3.Connection, reader: str, key: str, but: str = "") -> None:
    """Note that a key stands still because of no rejection so far, but of one fact's."""
    for (rejection,) in db.execute(_UNANSWERED, (key, reader, but)).fetchall():
        db.execute("UPDATE letters SET answered = 1 WHERE rejection = ?", (rejection,))
        _update(db, rejection)


def _update(db: sqlite3.Connection, rejection: str) -> None:
    """Set the state of a rejected fact as it follows from what was asked and answered."""
    db.execute(
        "UPDATE letters SET state ="
        " CASE (SELECT what FROM asked WHERE asked.rejection = letters.rejection)"
        " WHEN 'drop' THEN 'dropped'"
        " WHEN 'retry' THEN CASE answered WHEN 1 THEN 'taken' ELSE 'retrying' END"
        " ELSE CASE answered WHEN 1 THEN 'taken' ELSE 'open' END END WHERE rejection = ?",
        (rejection,),
    )


def _note(db: sqlite3.Connection, event: Event, data: Request) -> None:
    """Note a request of a client, by which it recognizes a repetition."""
    if event.origin is not None and event.origin.startswith("client/"):
        row = event.origin, request_text(data)
        db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", row)


def _settle(
    db: sqlite3.Connection,
    data: MessageRetryRequested | MessageDropped | MessageTaken,
    state: DeadLetterState,
) -> None:
    db.execute(
        "UPDATE letters SET state = ? WHERE id = ? AND state NOT IN ('dropped', 'taken')",
        (state, id_of(data)),
    )


def read_dead_letters(
    db: sqlite3.Connection,
    state: DeadLetterState | None = None,
    *,
    before: tuple[str, str] | None = None,
    limit: int = -1,
) -> list[DeadLetter]:
    """Return dead letters, the newest first.

    Args:
        db: with the tables.
        state: those in this state alone.
        before: time and id of the last one of the page before.
        limit: so many at most, all if below 0.
    """
    rows = db.execute(
        f"SELECT {_FIELDS} FROM letters"  # noqa: S608 - named above
        " WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR (at, id) < (?2, ?3))"
        " ORDER BY at DESC, id DESC LIMIT ?4",
        (state, *(before or (None, None)), limit),
    )
    return [DeadLetter(*row) for row in rows]


def read_dead_letter(db: sqlite3.Connection, letter_id: str) -> DeadLetter | None:
    """Return a dead letter by its id."""
    query = f"SELECT {_FIELDS} FROM letters WHERE id = ?"  # noqa: S608 - named above
    row = db.execute(query, (letter_id,)).fetchone()
    return DeadLetter(*row) if row else None


def read_dropped(db: sqlite3.Connection) -> frozenset[str]:
    """Return ids of messages that are dropped, of whatever readers but processors."""
    rows = db.execute("SELECT rejection FROM asked WHERE what = 'drop' AND rejection LIKE '%/%'")
    return frozenset(name for (name,) in rows)


def letters_of(
    reader: str, rejected: Iterable[Rejection], dropped: Container[str]
) -> list[DeadLetter]:
    """Return the dead letters of what a reader's projections could not fold: one for each message.

    Args:
        reader: whose.
        rejected: by all of its projections.
        dropped: ids of letters that are.
    """
    found: dict[str, DeadLetter] = {}
    for name, partition, position, key, reason, value, at in rejected:
        letter = DeadLetter(at, name, partition, position, key, reader, reason, value)
        letter.state = "dropped" if letter.id in dropped else "open"
        known = found.setdefault(letter.id, letter)
        known.at = min(known.at, at)
    return list(found.values())


def request_of(db: sqlite3.Connection, origin: str | None) -> str | None:
    """Return the client's request of an origin in words, None if there was none."""
    row = db.execute("SELECT wish FROM requests WHERE origin = ?", (origin,)).fetchone()
    return row[0] if row else None


def count_open(db: sqlite3.Connection) -> int:
    """Return how many dead letters are open."""
    (count,) = db.execute("SELECT count(*) FROM letters WHERE state = 'open'").fetchone()
    found: int = count
    return found
