"""Errors of the series store, and ClickHouse's errors translated into them."""

import re
from typing import ClassVar, Final, Protocol

from rung.events import RungError

_CODE: Final = re.compile(r"Code: (\d+)")

_PASSING: Final = {
    3: "the server is going down",
    74: "a file could not be read",
    75: "a file could not be written; is the disk full?",
    159: "a query took too long",
    173: "memory is short",
    198: "a host's name is not known to the server",
    202: "too many queries at once",
    203: "no connection is free",
    209: "no answer came in time",
    210: "the connection broke",
    225: "ZooKeeper or Keeper is away",
    236: "the server is going down",
    241: "memory is short",
    242: "the table can only be read for now; is Keeper away?",
    243: "the disk is full",
    252: "it is behind with merging",
    285: "too few replicas are alive",
    319: "whether rows were inserted is not known",
    394: "the query was canceled",
    999: "ZooKeeper or Keeper is away",
    1001: "the system refused; is the disk full, or the folder read-only?",
}
_DAMAGED: Final = frozenset(
    {32, 33, 39, 40, 85, 107, 117, 128, 131, 226, 228, 246, 271, 282, 363, 432, 740}
)
_MISSING: Final = frozenset({60})
"""Tables that were dropped."""


class SeriesError(RungError):
    """The series could not do what was asked."""


class SeriesUnavailable(SeriesError):
    """It failed now, and may work in a moment; nothing is lost."""

    retriable: ClassVar[bool] = True


class SeriesLocked(SeriesError):
    """Another process has the folder open."""


class SeriesDamaged(SeriesError):
    """The folder or database cannot be used; another is filled from what the ledger holds."""


class Place(Protocol):
    """A folder or a database."""

    @property
    def place(self) -> str:
        """Its path or address without a password, for messages."""
        ...

    @property
    def remedy(self) -> str:
        """What to do when its contents cannot be used, for messages."""
        ...


def explain(where: Place, text: str, code: int | None = None) -> SeriesError:
    """Return an error of ClickHouse's as one of Rung's.

    Args:
        where: it happened.
        text: ClickHouse's message.
        code: its number; in the text if not given.
    """
    said = first_line(text)
    codes = [code] if code is not None else [int(found) for found in _CODE.findall(text)]
    for number in codes:
        if number in _PASSING:
            return SeriesUnavailable(f"{where.place}: {_PASSING[number]} ({said})")
    if any(number in _DAMAGED for number in codes):
        return SeriesDamaged(f"{where.place} is damaged ({said}). {where.remedy}")
    if any(number in _MISSING for number in codes):
        return SeriesDamaged(f"{where.place} lacks a table ({said}). {where.remedy}")
    return SeriesError(f"{where.place}: {said}")


def first_line(text: str) -> str:
    """Return ClickHouse's message without the stack trace."""
    line = text.strip().split("\n", 1)[0].removeprefix("DB::Exception: ")
    return line.removesuffix(" Stack trace:")[:500]
