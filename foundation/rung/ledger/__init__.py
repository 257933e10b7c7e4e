"""The ledger: the port, and one adapter per technology."""

from rung.ledger.factory import open_ledger
from rung.ledger.memory import MemoryLedger
from rung.ledger.port import (
    Draft,
    Ledger,
    Record,
    Transactional,
    append_and_commit,
    read_of,
    root_of,
    staged,
)
from rung.ledger.sqlite.ledger import SqliteLedger

__all__ = [
    "Draft",
    "Ledger",
    "MemoryLedger",
    "Record",
    "SqliteLedger",
    "Transactional",
    "append_and_commit",
    "open_ledger",
    "read_of",
    "root_of",
    "staged",
]
