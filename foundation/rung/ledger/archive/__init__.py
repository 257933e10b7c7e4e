"""Archives of a ledger in an object store: segments in chains, which prove themselves.

What an audit needs outlives the ledger's own retention there. `rung.checkpoint_gc.archiver` writes
it; `verify` says whether all of it is there and nothing was altered, and `ArchiveLedger` lets
whatever reads a ledger read it.
"""

from rung.ledger.archive.copier import Archived
from rung.ledger.archive.index import TOPICS, ledgers_in
from rung.ledger.archive.reader import ArchiveLedger
from rung.ledger.archive.segment import Segment
from rung.ledger.archive.settings import ArchiveSettings
from rung.ledger.archive.url import Location, parse_location
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
