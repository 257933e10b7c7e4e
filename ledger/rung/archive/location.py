"""How a person names an archive: `s3://bucket/prefix`, and `…#LEDGER` where several lie there."""

from typing import NamedTuple


class Location(NamedTuple):
    """An object store, and the ledger whose archive in it is meant."""

    url: str
    """For `rung.objects.open_store`."""
    ledger_id: str | None
    """None: the only one there."""


def parse_location(text: str) -> Location:
    """Return what an URL such as `file:///srv/archive` or `s3://bucket/prefix#LEDGER` names."""
    url, _, ledger_id = text.partition("#")
    return Location(url, ledger_id or None)
