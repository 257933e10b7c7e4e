"""The projection of the directory's answers to requests that may have had an Idempotency-Key.

The directory itself is in the memory of each gateway (`rung.gateway.directory.directory`), with
its newest answers. A client may repeat a request much later, and its fact is dropped as a
repetition: then the answer is found here.
"""

import sqlite3
from typing import Final

import msgspec

from rung.events import Event, topic
from rung.events.directory import ChangeRefused, DirectoryChanged
from rung.runtime.projection import Projection

Answer = DirectoryChanged | ChangeRefused

BY_KEY: Final = "client/"
"""How the origins of requests with an Idempotency-Key begin."""
_HELD: Final = f"/{topic.RETIREMENTS}/"
"""What origins of the answers of checkpoint-gc have."""
_SCHEMA: Final = """
CREATE TABLE answers (
    request_id TEXT PRIMARY KEY, type TEXT NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
"""
_KINDS: Final[dict[str, type[Answer]]] = {
    kind.TYPE: kind for kind in (DirectoryChanged, ChangeRefused)
}


class DirectoryProjection(Projection):
    """The fold of the directory's decisions."""

    name = "directory"
    facts = topic.REQUESTS
    decisions = (topic.DIRECTORY,)
    handles = DirectoryChanged | ChangeRefused
    schema = _SCHEMA

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:  # noqa: ARG002 - there is one key
        """Keep a decision on a request that may be repeated.

        A registration is decided on checkpoint-gc's answer, which does not tell of a key.
        """
        data, cause = event.data, event.cause or ""
        assert isinstance(data, Answer)
        if cause.startswith(BY_KEY) or _HELD in cause:
            row = data.request_id, data.TYPE, msgspec.msgpack.encode(data)
            db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", row)


def answer_of(db: sqlite3.Connection, request_id: str) -> Answer | None:
    """Return the decision on a request, None if there is none so far, or it had no key."""
    query = "SELECT type, body FROM answers WHERE request_id = ?"
    row = db.execute(query, (request_id,)).fetchone()
    return None if row is None else msgspec.msgpack.decode(row[1], type=_KINDS[row[0]])
