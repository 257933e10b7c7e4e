"""Sizes in options of commands: 500GB, 1.5TiB, 200000."""

import re
from typing import Any, Final

import click

_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?\s*", re.IGNORECASE)
_UNITS: Final = ("", "K", "M", "G", "T", "P")


class Size(click.ParamType):
    """An option that takes a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not a size: give bytes, as 500GB or 200GiB", param, ctx)
        thousand = 1024 if found[3] else 1000
        return int(float(found[1]) * thousand ** _UNITS.index(found[2].upper()))
