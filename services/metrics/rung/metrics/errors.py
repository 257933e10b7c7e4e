"""What can go wrong with the series: chDB's words turned into ones that a person can act on."""

import re
from pathlib import Path
from typing import ClassVar, Final

from rung.events import RungError

_CODE: Final = re.compile(r"Code: (\d+)")

_PASSING: Final = {
    159: "a query took too long",
    173: "memory is short",
    241: "memory is short",
    243: "the disk is full",
    252: "chDB is behind with merging",
    74: "a file could not be read",
    75: "a file could not be written; is the disk full?",
    1001: "the system refused; is the disk full, or the folder read-only?",
}
_DAMAGED: Final = frozenset(
    {32, 33, 39, 40, 85, 107, 117, 128, 131, 226, 228, 246, 271, 282, 363, 432, 740}
)


class SeriesError(RungError):
    """The series could not do what was asked."""


class SeriesUnavailable(SeriesError):
    """It did not work now, and may in a moment; nothing is lost."""

    retriable: ClassVar[bool] = True


class SeriesLocked(SeriesError):
    """Another process has the folder open."""


class SeriesDamaged(SeriesError):
    """The folder cannot be used; deleting it builds it anew from the ledger."""


def remedy(folder: Path) -> str:
    """Return what to do about a folder that cannot be used."""
    return (
        f"Nothing lies in {folder} that the ledger does not have: stop Rung, delete the folder, "
        "and it is built again at the next start"
    )


def explain(folder: Path, error: Exception) -> SeriesError:
    """Return chDB's error as one of Rung's."""
    text = str(error)
    codes = [int(code) for code in _CODE.findall(text)]
    for code in codes:
        if code in _PASSING:
            return SeriesUnavailable(f"{folder}: {_PASSING[code]} ({_first_line(text)})")
    if any(code in _DAMAGED for code in codes):
        return SeriesDamaged(f"{folder} is damaged ({_first_line(text)}). {remedy(folder)}")
    return SeriesError(f"{folder}: {_first_line(text)}")


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:500]
