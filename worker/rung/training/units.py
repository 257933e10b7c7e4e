"""Lengths and periods of training, in batches, epochs or records."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from rung.events import RungError


class InvalidPlan(RungError):
    """A length, period or policy that is not valid; the message has the fix."""


class TrainUnit(Struct, frozen=True):
    """A length of training, in a unit: see `Batch`, `Epoch` and `Record`."""

    value: int


class Batch(TrainUnit, frozen=True):
    """A number of batches."""


class Epoch(TrainUnit, frozen=True):
    """A number of passes over the training data."""


class Record(TrainUnit, frozen=True):
    """A number of records (samples)."""


UNITS: Final[dict[str, type[TrainUnit]]] = {
    "batches": Batch,
    "steps": Batch,
    "epochs": Epoch,
    "records": Record,
}
"""The units of the experiment file."""


def from_config(value: Any, field: str) -> TrainUnit | None:
    """Return a length of the experiment file, `{epochs: 2}`; None where it is absent or 0.

    Raises:
        InvalidPlan: it is not a length.
    """
    if not value:
        return None
    if isinstance(value, int):
        return Batch(value)
    if isinstance(value, Mapping) and len(value) == 1:
        [(word, number)] = value.items()
        if word in UNITS and isinstance(number, int):
            return UNITS[word](number) if number else None
    raise InvalidPlan(f"{field}: must be like {{batches: 100}} or {{epochs: 1}}, not {value!r}")
