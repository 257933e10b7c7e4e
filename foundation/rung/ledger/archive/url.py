"""How a person names an archive: `s3://bucket/prefix`, and `…#LEDGER` where several lie there."""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from rung.events.errors import ObjectError
from rung.storage import ObjectStore, open_store


class Location(NamedTuple):
    """An object store, and the ledger whose archive in it is meant."""

    url: str
    """For `rung.storage.open_store`."""
    ledger_id: str | None
    """None: the only one there."""

    def open(self) -> ObjectStore:
        """Open the store to read from it.

        Raises:
            ObjectError: there is none.
        """
        parts = urlsplit(self.url)
        if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
            raise ObjectError(f"archive {self.url!r}: there is no folder {unquote(parts.path)}")
        return open_store(self.url)


def parse_location(text: str) -> Location:
    """Return what an URL such as `file:///srv/archive` or `s3://bucket/prefix#LEDGER` names."""
    url, _, ledger_id = text.partition("#")
    return Location(url, ledger_id or None)
