"""An event with its projection, as somebody would add them: notes on experiments."""

import sqlite3
from typing import ClassVar

from msgspec import Struct

from rung.events import Event, topic
from rung.runtime.projection import Projection


class ExperimentNoted(Struct, frozen=True, kw_only=True):
    """Somebody wrote a note on an experiment."""

    TYPE: ClassVar[str] = "rung.experiment.noted.v1"
    TOPIC: ClassVar[str] = topic.EXPERIMENTS
    WRITER: ClassVar[str] = "gateway"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    experiment_id: str
    text: str


class Notes(Projection):
    """The notes on experiments, by the words in them."""

    name = "notes"
    facts = topic.EXPERIMENTS
    handles = ExperimentNoted  # type: ignore[assignment]  # until the union of payloads has it
    schema = "CREATE VIRTUAL TABLE notes USING fts5 (id UNINDEXED, text)"

    def evolve(self, db: sqlite3.Connection, key: str, event: Event) -> None:
        """Keep a note."""
        data: object = event.data
        assert isinstance(data, ExperimentNoted)
        db.execute("INSERT INTO notes VALUES (?, ?)", (key, data.text))


def noted(db: sqlite3.Connection, words: str) -> list[tuple[str, str]]:
    """Return the experiments on which there is a note with some words, and the notes."""
    query = "SELECT id, text FROM notes WHERE notes MATCH ? ORDER BY rowid"
    return list(db.execute(query, (words,)))
