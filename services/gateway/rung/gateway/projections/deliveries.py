"""The projection of deliveries to webhooks: what was to be told, and how that went.

Of each webhook the newest `KEPT` are kept, with their events, so that one can be repeated. They
are numbered in the order in which they were first asked for, which is that of the list.
"""

import sqlite3
from typing import Any, Final, NamedTuple

import msgspec

from rung.events import Event, topic
from rung.events.webhook import DeliveryAttempted, DeliveryRequested, RedeliveryRequested
from rung.runtime.projection import Projection
from rung.subscription.cloud_event import TEST

KEPT: Final = 1_000
_FIELDS: Final = (
    "number, id, requested_at, experiment_id, event, state, attempts, attempted_at, status,"
    " reason, took_ms, next_ms"
)
_SCHEMA: Final = """
CREATE TABLE deliveries (
    webhook_id TEXT NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL,
    requested_at TEXT NOT NULL, experiment_id TEXT NOT NULL, event BLOB NOT NULL,
    state TEXT NOT NULL, attempts INTEGER NOT NULL, attempted_at TEXT, status INTEGER,
    reason TEXT NOT NULL, took_ms INTEGER NOT NULL, next_ms INTEGER,
    PRIMARY KEY (webhook_id, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX deliveries_by_id ON deliveries (webhook_id, id);
CREATE TABLE requests (origin TEXT PRIMARY KEY, wish TEXT NOT NULL) WITHOUT ROWID;
"""


class Delivered(NamedTuple):
    """A delivery and how it went."""

    number: int
    """Counts the deliveries of its webhook from 0."""
    id: str
    requested_at: str
    experiment_id: str
    event: bytes
    """A CloudEvent, as JSON."""
    state: str
    """`waiting`, or how it ended."""
    attempts: int
    attempted_at: str | None
    status: int | None
    reason: str
    took_ms: int
    next_ms: int | None

    @property
    def cloud_event(self) -> dict[str, Any]:
        """What its receiver gets."""
        found: dict[str, Any] = msgspec.json.decode(self.event)
        return found


class DeliveryProjection(Projection):
    """The fold of the topic `deliveries`."""

    name = "deliveries"
    facts = topic.DELIVERIES
    handles = DeliveryRequested | RedeliveryRequested | DeliveryAttempted
    schema = _SCHEMA

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Fold what is to be delivered, or an attempt at it."""
        match event.data:
            case RedeliveryRequested() as asked:
                if event.origin is not None and event.origin.startswith("client/"):
                    row = event.origin, request_text(asked)
                    db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", row)
                _request(db, key, event.time, asked)
                db.execute(
                    "UPDATE deliveries SET state = 'waiting', next_ms = NULL"
                    " WHERE webhook_id = ? AND id = ?",
                    (key, asked.delivery_id),
                )
            case DeliveryRequested() as asked:
                _request(db, key, event.time, asked)
            case DeliveryAttempted() as made:
                _attempt(db, key, event.time, made)
            case _:
                raise AssertionError(event)


def request_text(asked: RedeliveryRequested) -> str:
    """Return a request in words, by which a repetition of it is recognized."""
    if asked.event.get("type") == TEST:
        return f"test webhook {asked.webhook_id}"
    return f"deliver {asked.delivery_id} of webhook {asked.webhook_id} again"


def _request(db: sqlite3.Connection, webhook_id: str, time: str, asked: DeliveryRequested) -> None:
    query = "SELECT coalesce(max(number) + 1, 0) FROM deliveries WHERE webhook_id = ?"
    (number,) = db.execute(query, (webhook_id,)).fetchone()
    db.execute(
        "INSERT OR IGNORE INTO deliveries VALUES"
        " (?, ?, ?, ?, ?, ?, 'waiting', 0, NULL, NULL, '', 0, NULL)",
        (
            webhook_id,
            number,
            asked.delivery_id,
            time,
            asked.experiment_id,
            msgspec.json.encode(asked.event),
        ),
    )
    old = "DELETE FROM deliveries WHERE webhook_id = ? AND number <= ?"
    db.execute(old, (webhook_id, number - KEPT))


def _attempt(db: sqlite3.Connection, webhook_id: str, time: str, made: DeliveryAttempted) -> None:
    db.execute(
        "UPDATE deliveries SET state = ?, attempts = ?, attempted_at = ?, status = ?, reason = ?,"
        " took_ms = ?, next_ms = ? WHERE webhook_id = ? AND id = ?",
        (
            "waiting" if made.outcome == "failed" else made.outcome,
            made.attempt,
            time,
            made.status,
            made.reason,
            made.took_ms,
            made.next_ms,
            webhook_id,
            made.delivery_id,
        ),
    )


def read_deliveries(
    db: sqlite3.Connection, webhook_id: str, *, before: int | None = None, limit: int = -1
) -> list[Delivered]:
    """Return deliveries of a webhook, the newest first.

    Args:
        db: with the tables.
        webhook_id: whose.
        before: the number of the last one of the page before.
        limit: so many at most, all if below 0.
    """
    rows = db.execute(
        f"SELECT {_FIELDS} FROM deliveries WHERE webhook_id = ?1"  # noqa: S608 - named above
        " AND (?2 IS NULL OR number < ?2) ORDER BY number DESC LIMIT ?3",
        (webhook_id, before, limit),
    )
    return [Delivered(*row) for row in rows]


def read_delivery(db: sqlite3.Connection, webhook_id: str, delivery_id: str) -> Delivered | None:
    """Return a delivery of a webhook by its id."""
    query = f"SELECT {_FIELDS} FROM deliveries WHERE webhook_id = ? AND id = ?"  # noqa: S608 - named above
    row = db.execute(query, (webhook_id, delivery_id)).fetchone()
    return Delivered(*row) if row else None


def request_of(db: sqlite3.Connection, origin: str | None) -> str | None:
    """Return the client's request of an origin in words, None if there was none."""
    row = db.execute("SELECT wish FROM requests WHERE origin = ?", (origin,)).fetchone()
    return row[0] if row else None
