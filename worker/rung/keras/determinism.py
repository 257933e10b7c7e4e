"""What makes a backend of Keras exact, and what cannot be: in the trial's log.

A backend's framework is imported with the backend, not before.
"""

from types import ModuleType

import keras

from rung import core
from rung.training.determinism import deterministic


def demand(run: core.Context) -> None:
    """Have the backend be deterministic, if the experiment asks for it."""
    if _on_tensorflow():
        _of_tensorflow().demand_or_tell(run)
    elif deterministic(run):
        _of_torch().demand()


def tell(run: core.Context) -> None:
    """Log what cannot be exact on torch; for TensorFlow, `demand` does."""
    if not _on_tensorflow():
        import torch  # noqa: PLC0415 - loaded by the backend

        from rung.torch import external_loop  # noqa: PLC0415 - imports torch

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        external_loop.tell(run, device)


def machine() -> dict[str, str]:
    """Return what the last bits of a result depend on, beside the program."""
    module = _of_tensorflow() if _on_tensorflow() else _of_torch()
    found: dict[str, str] = module.machine()
    return found


def _on_tensorflow() -> bool:
    return bool(keras.backend.backend() == "tensorflow")


def _of_tensorflow() -> ModuleType:
    from rung.tensorflow import determinism  # noqa: PLC0415 - imports TensorFlow

    return determinism


def _of_torch() -> ModuleType:
    from rung.torch import determinism  # noqa: PLC0415 - imports torch

    return determinism
