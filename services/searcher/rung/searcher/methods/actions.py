"""What a search method may want, and why a trial may leave it."""

from typing import Literal

from msgspec import Struct

Leaving = Literal["errored", "ended", "invalid_hp", "stopped"]
"""Why a trial's runs are over before it was trained to its length: it failed too often; it ended
by itself; its script refused the hyperparameters; the method gave it up."""


class Open(Struct, frozen=True):
    """A new trial, to be trained to a length (None: until it ends by itself)."""

    bracket: int
    length: int | None


class Promote(Struct, frozen=True):
    """A resting trial, to be trained on for the next rung; `reason` is the evidence."""

    index: int
    rung: int
    length: int
    reason: str


class Stop(Struct, frozen=True):
    """A trial to be given up at a rung; `reason` is the evidence."""

    index: int
    rung: int
    reason: str


Move = Open | Promote
