"""Archives of a ledger in an object store: segments in chains, which prove themselves.

What an audit needs outlives the ledger's own retention there. `archive` writes for ever,
`archive_now` once; `verify` says whether all of it is there and nothing was altered, and
`ArchiveLedger` lets whatever reads a ledger read it.
"""

from rung.archive.location import Location, parse_location
from rung.archive.reading import ArchiveLedger
from rung.archive.segment import Segment
from rung.archive.settings import ArchiveSettings
from rung.archive.shelf import TOPICS, ledgers_in
from rung.archive.stream import Archived
from rung.archive.verify import Problem, Report, damaged_in, verify
from rung.archive.writer import archive, archive_now

__all__ = [
    "TOPICS",
    "ArchiveLedger",
    "ArchiveSettings",
    "Archived",
    "Location",
    "Problem",
    "Report",
    "Segment",
    "archive",
    "archive_now",
    "damaged_in",
    "ledgers_in",
    "parse_location",
    "verify",
]
