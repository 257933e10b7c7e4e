"""The projection of dead letters: messages that a reader rejected, and their states.

A dead letter is *open* until an operator requests something. After a request to retry it is
*retrying* until its reader answers: then it is *taken*, or open again with the newer reason. A
reader's first rejection of a message is repeated, under one number, whenever the reader starts,
and counts once; a rejection that answers a request has a number of its own. A dead letter is taken
without a request, too, where a newer release folds its message. One that is *dropped* stays so.
"""

import sqlite3
from typing import Final, Literal, assert_never

from msgspec import Struct

from rung.events import Event, topic
from rung.events.deadletter import (
    MessageDropped,
    MessageRejected,
    MessageRetryRequested,
    MessageTaken,
)
from rung.runtime.projection import Projection

_VALUE_LENGTH: Final = 4_096

Request = MessageRetryRequested | MessageDropped
DeadLetterState = Literal["open", "retrying", "dropped", "taken"]
_SETTLED: Final = frozenset({"dropped", "taken"})
_FIELDS: Final = "number, at, topic, partition, position, key, reader, reason, value, state"
_SCHEMA: Final = """
CREATE TABLE letters (
    id TEXT PRIMARY KEY,
    number INTEGER NOT NULL, at TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    position INTEGER NOT NULL, key TEXT NOT NULL, reader TEXT NOT NULL, reason TEXT NOT NULL,
    value TEXT NOT NULL, state TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX letters_by_time ON letters (at, topic, number);
CREATE INDEX letters_by_state ON letters (state, at, topic, number);
CREATE INDEX letters_by_topic ON letters (topic, number);
CREATE TABLE requests (origin TEXT PRIMARY KEY, wish TEXT NOT NULL) WITHOUT ROWID;
"""


class DeadLetter(Struct):
    """One rejected message; `number` counts the rejections of its topic from 0."""

    number: int
    at: str
    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str
    state: DeadLetterState = "open"

    @property
    def id(self) -> str:
        """Its id, see `id_of`."""
        return id_of(self)

    @property
    def settled(self) -> bool:
        """Whether its state is final."""
        return self.state in _SETTLED


class DeadLetterProjection(Projection):
    """The fold of the topic `deadletter`."""

    name = "deadletters"
    facts = topic.DEADLETTER
    handles = MessageRejected | MessageRetryRequested | MessageDropped | MessageTaken
    version = 1
    schema = _SCHEMA

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:  # noqa: ARG002 - the key is in the event
        """Fold a rejection, a request, or its answer."""
        data = event.data
        match data:
            case MessageRejected():
                _reject(db, event, data)
            case MessageRetryRequested() | MessageDropped():
                _ask(db, event, data)
            case MessageTaken():
                _settle(db, data, "taken")
            case _:
                raise AssertionError(data)


def id_of(message: DeadLetter | MessageRejected | Request | MessageTaken) -> str:
    """Return the id of a dead letter: its reader, and the position of the message."""
    return f"{message.reader}/{message.topic}/{message.partition}/{message.position}"


def request_text(data: Request) -> str:
    """Return a request in words, by which a repetition of it is recognized."""
    match data:
        case MessageRetryRequested():
            return f"retry {id_of(data)}"
        case MessageDropped():
            return f"drop {id_of(data)}"
        case _:
            assert_never(data)


def _reject(db: sqlite3.Connection, event: Event, data: MessageRejected) -> None:
    query = "SELECT coalesce(max(number) + 1, 0) FROM letters WHERE topic = ?"
    (number,) = db.execute(query, (data.topic,)).fetchone()
    db.execute(
        f"INSERT INTO letters (id, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'open')"  # noqa: S608 - named above
        " ON CONFLICT DO UPDATE SET number = excluded.number, at = excluded.at,"
        " reason = excluded.reason, value = excluded.value,"
        " state = CASE state WHEN 'dropped' THEN 'dropped' ELSE 'open' END",
        (
            id_of(data),
            number,
            event.time,
            data.topic,
            data.partition,
            data.position,
            data.key,
            data.reader,
            data.reason,
            data.value[:_VALUE_LENGTH],
        ),
    )


def _ask(db: sqlite3.Connection, event: Event, data: Request) -> None:
    if event.origin is not None and event.origin.startswith("client/"):
        row = event.origin, request_text(data)
        db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", row)
    _settle(db, data, "dropped" if isinstance(data, MessageDropped) else "retrying")


def _settle(db: sqlite3.Connection, data: Request | MessageTaken, state: DeadLetterState) -> None:
    db.execute(
        "UPDATE letters SET state = ? WHERE id = ? AND state NOT IN ('dropped', 'taken')",
        (state, id_of(data)),
    )


def read_dead_letters(
    db: sqlite3.Connection,
    state: DeadLetterState | None = None,
    *,
    before: tuple[str, str, int] | None = None,
    limit: int = -1,
) -> list[DeadLetter]:
    """Return dead letters, the newest first.

    Args:
        db: with the tables.
        state: those in this state alone.
        before: time, topic and number of the last one of the page before.
        limit: so many at most, all if below 0.
    """
    rows = db.execute(
        f"SELECT {_FIELDS} FROM letters"  # noqa: S608 - named above
        " WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR (at, topic, number) < (?2, ?3, ?4))"
        " ORDER BY at DESC, topic DESC, number DESC LIMIT ?5",
        (state, *(before or (None, None, None)), limit),
    )
    return [DeadLetter(*row) for row in rows]


def read_dead_letter(db: sqlite3.Connection, letter_id: str) -> DeadLetter | None:
    """Return a dead letter by its id."""
    query = f"SELECT {_FIELDS} FROM letters WHERE id = ?"  # noqa: S608 - named above
    row = db.execute(query, (letter_id,)).fetchone()
    return DeadLetter(*row) if row else None


def request_of(db: sqlite3.Connection, origin: str | None) -> str | None:
    """Return the client's request of an origin in words, None if there was none."""
    row = db.execute("SELECT wish FROM requests WHERE origin = ?", (origin,)).fetchone()
    return row[0] if row else None


def count_open(db: sqlite3.Connection) -> int:
    """Return how many dead letters are open."""
    (count,) = db.execute("SELECT count(*) FROM letters WHERE state = 'open'").fetchone()
    found: int = count
    return found
