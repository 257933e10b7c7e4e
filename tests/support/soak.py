"""Long forms of tests: what `make soak` runs beside their short forms in `make test`."""

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], every: int) -> list[Any]:
    """Return parameters of a test: the first and each so many-th are its short form."""
    return [
        value if number % every == 0 else pytest.param(value, marks=pytest.mark.soak)
        for number, value in enumerate(values)
    ]


def shortened(values: Iterable[Any], short: Iterable[Any]) -> list[Any]:
    """Return parameters of a test, of which some are its short form."""
    kept = list(short)
    return [it if it in kept else pytest.param(it, marks=pytest.mark.soak) for it in values]
