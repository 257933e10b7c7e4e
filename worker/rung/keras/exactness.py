"""What makes a backend of Keras exact, and what cannot be: told in the trial's log."""

import keras
import torch

from rung import core
from rung.loop import exactness
from rung.loop.seeding import deterministic
from rung.torch import exactness as of_torch


def demand(run: core.Context) -> None:
    """Have the backend be deterministic, if the experiment asks for it."""
    if _on_tensorflow():
        from rung.loop import tensorflow_exactness  # noqa: PLC0415 - imports TensorFlow

        tensorflow_exactness.demand_or_tell(run)
    elif deterministic(run):
        of_torch.demand()


def tell(run: core.Context) -> None:
    """Say in the log what cannot be exact on torch; of TensorFlow it was said at the start."""
    if not _on_tensorflow():
        exactness.tell(run, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def machine() -> dict[str, str]:
    """Return what the last bits of a result depend on, beside the program."""
    if _on_tensorflow():
        from rung.loop import tensorflow_exactness  # noqa: PLC0415 - imports TensorFlow

        return tensorflow_exactness.machine()
    return of_torch.machine()


def _on_tensorflow() -> bool:
    return bool(keras.backend.backend() == "tensorflow")
