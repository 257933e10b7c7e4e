"""A rank that never comes to TensorFlow, and others that do not wait for it for long."""

import importlib
import os
from typing import Any, Final

from rung import core

_PATIENCE_MS: Final = 3000


def stays_away(order: dict[str, Any]) -> bool:
    """Return whether this is the rank that an order has come late; it met the others, and left.

    It hurries the other ranks.
    """
    if "late" not in order:
        return False
    if order["late"] != int(os.environ["RUNG_RANK"]):
        ranks: Any = importlib.import_module("rung.tensorflow.ranks")
        ranks.PATIENCE_MS = _PATIENCE_MS
        return False
    with core.init():
        return True
