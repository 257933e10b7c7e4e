"""Copies of projections' files in the object store: a replica without a file starts from one.

Theory of operation. All replicas fold the same records into the same tables, so the file of one
will do for any other that has the same tables. A replica publishes a copy of its file once so many
records were folded behind the newest copy of any replica. A copy's name has a checksum of its
tables, how many records are folded into it, and its digest: so a replica finds the newest one that
fits by a listing, and leaves out what was damaged. Two replicas that publish at a time do no harm.
The one that publishes deletes all copies, also those of other tables, that are older than its last
but one.

Nothing depends on a copy: where there is none, or the store does not answer, the ledger is folded
from its start.
"""

import time
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from blake3 import blake3

from rung.events.errors import ObjectError
from rung.storage import ObjectStore

KEPT: Final = 2
"""Copies of the same tables."""
WORTH_RECORDS: Final = 20_000
"""A copy is published behind so many more records than the newest has."""
_CHUNK_BYTES: Final = 1 << 20

_log = structlog.get_logger()


class Copy(NamedTuple):
    """What a copy's name says."""

    records: int
    """Up to which the ledger was folded, all places together."""
    tables: str
    digest: str

    @property
    def name(self) -> str:
        """The last part of the object's name; names sort as their records do."""
        return f"{self.records:016}.{self.tables}.{self.digest}"


class Copies:
    """The copies of the projections of one ledger. Methods block."""

    def __init__(self, store: ObjectStore, ledger_id: str) -> None:
        self._store = store
        self._prefix = f"snapshots/{ledger_id}/projections"

    def newest(self, projection: str, tables: str) -> Copy | None:
        """Return the newest copy of a projection's tables, None if there is none.

        Raises:
            ObjectError: the store does not answer.
        """
        fitting = (copy for copy in self._list(projection) if copy.tables == tables)
        return max(fitting, default=None)

    def bring(self, projection: str, tables: str, target: Path) -> bool:
        """Write the newest copy of a projection's tables to a file; return whether it is there.

        It is not where there is none, the store fails, or the copy is damaged, which is logged.
        """
        began = time.monotonic()
        try:
            copy = self.newest(projection, tables)
            if copy is None:
                return False
            self._store.get(f"{self._prefix}/{projection}/{copy.name}", target)
            whole = _digest_of(target) == copy.digest
        except (ObjectError, OSError) as error:
            target.unlink(missing_ok=True)
            _log.warning("no copy of a projection", projection=projection, reason=str(error))
            return False
        if not whole:
            target.unlink(missing_ok=True)
            reason = f"{copy.name} is damaged"
            _log.warning("no copy of a projection", projection=projection, reason=reason)
            return False
        took_s = round(time.monotonic() - began, 2)
        _log.info("projection copied", projection=projection, records=copy.records, seconds=took_s)
        return True

    def publish(self, projection: str, tables: str, source: Path, records: int) -> None:
        """Publish a copy, and delete those that are older than the last but one of these tables.

        Raises:
            ObjectError: the store fails.
            OSError: the file cannot be read.
        """
        copy = Copy(records, tables, _digest_of(source))
        self._store.put(f"{self._prefix}/{projection}/{copy.name}", source)
        found = self._list(projection)
        own = sorted((it for it in found if it.tables == tables), reverse=True)
        for old in found:
            if len(own) >= KEPT and old.records < own[KEPT - 1].records:
                self._store.delete(f"{self._prefix}/{projection}/{old.name}")
        _log.info(
            "projection published",
            projection=projection,
            records=records,
            size_bytes=source.stat().st_size,
        )

    def _list(self, projection: str) -> list[Copy]:
        found = []
        for item in self._store.list(f"{self._prefix}/{projection}/"):
            match item.name.rpartition("/")[2].split("."):
                case [records, tables, digest] if records.isdigit():
                    found.append(Copy(int(records), tables, digest))
        return found


def _digest_of(path: Path) -> str:
    digest = blake3()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()[:32]
