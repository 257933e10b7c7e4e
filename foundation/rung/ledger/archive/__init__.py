"""Archive of a ledger in an object store: chains of segments that prove each other.

It keeps what an audit needs beyond the ledger's own retention. `rung.checkpoint_gc.archiver`
writes it, `verify` checks that nothing is missing or altered, and `ArchiveLedger` reads it.
"""

from rung.ledger.archive.copier import Archived, ArchiveSettings
from rung.ledger.archive.index import TOPICS, Location, ledgers_in, parse_location
from rung.ledger.archive.reader import ArchiveLedger
from rung.ledger.archive.segment import Segment
from rung.ledger.archive.verify import Problem, Report, damaged_in, verify

__all__ = [
    "TOPICS",
    "ArchiveLedger",
    "ArchiveSettings",
    "Archived",
    "Location",
    "Problem",
    "Report",
    "Segment",
    "damaged_in",
    "ledgers_in",
    "parse_location",
    "verify",
]
