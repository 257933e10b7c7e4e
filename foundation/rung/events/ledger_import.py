"""Imports: what was imported into a ledger from an export or an archive, and whether it completed.

An import begins with `ImportStarted`, lists its keys with `ImportKeysListed`, and ends with
`ImportCompleted`. On SQLite all of them, and the records themselves, are one transaction. On
Kafka, which has none of that size, a start without an end is an unfinished import: services refuse
to start on that ledger until the same import is completed.
"""

from typing import ClassVar

from msgspec import Struct

from rung.events import topic


class _Import(Struct, frozen=True, kw_only=True):
    """The import that an event is about."""

    TOPIC: ClassVar[str] = topic.IMPORTS
    WRITER: ClassVar[str] = "import"
    READERS: ClassVar[tuple[str, ...]] = ("import", "host", "audit")

    ledger_id: str
    """The ledger that is imported into."""
    import_id: str
    """SHA-256 of the imported records, in hexadecimal; the same for the same export."""


class ImportStarted(_Import, frozen=True, kw_only=True):
    """An import began, or resumed with the `starts` of the first attempt."""

    TYPE: ClassVar[str] = "rung.import.started.v1"

    exported_from: str
    """Id of the ledger that was exported."""
    exported_by: str
    """Version of Rung that wrote the export."""
    experiment: str | None
    """The experiment, where the export holds only one."""
    records: int
    experiments: int
    """How many of them the export holds."""
    starts: dict[str, list[int]]
    """By topic, for each partition: the position from which on imported records lie."""


class ImportedKey(Struct, frozen=True, kw_only=True):
    """The imported records of one key on one topic."""

    topic: str
    key: str
    records: int
    digest: str
    """SHA-256 chained over the records, in hexadecimal; `causeposition` is left out."""


class ImportKeysListed(_Import, frozen=True, kw_only=True):
    """Some of the imported keys; an import of many keys has several of these events."""

    TYPE: ClassVar[str] = "rung.import.keys_listed.v1"
    READERS: ClassVar[tuple[str, ...]] = ("audit",)

    part: int
    """Counted from 0; a part that is on record twice counts once."""
    keys: list[ImportedKey]


class ImportCompleted(_Import, frozen=True, kw_only=True):
    """All records of an import are in the ledger."""

    TYPE: ClassVar[str] = "rung.import.completed.v1"

    records: int
    forwarded: int
    """Facts appended because a relay would have made them of imported decisions."""
    lost: int
    """Runs ended as lost, because their allocations had ended and they had not."""
    undeleted: int
    """Checkpoints that the former ledger retired and had not deleted."""
