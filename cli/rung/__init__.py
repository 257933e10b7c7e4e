"""Rung, a deep-learning training platform: what scripts and notebooks import.

    import rung

    result = rung.tune(train, space={"lr": rung.loguniform(1e-4, 1e-1)}, metric="loss", trials=50)

or, in the script of an experiment, with any framework:

    with rung.init() as run:
        ...

This is the one `__init__.py` of the package `rung`, whose parts lie below several root folders of
the repository (decision 0036). Its names are imported at first use, so `import rung` and the
import of any part cost no time.
"""

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rung.client import Client
    from rung.core._init import init
    from rung.tuning import choice, loguniform, randint, tune, uniform

__path__[:] = extend_path(__path__, __name__)  # in place, so that `__spec__` has it as well

__all__ = ["Client", "choice", "init", "loguniform", "randint", "tune", "uniform"]

_HOMES: Final = {
    "Client": "rung.client",
    "choice": "rung.tuning",
    "init": "rung.core._init",
    "loguniform": "rung.tuning",
    "randint": "rung.tuning",
    "tune": "rung.tuning",
    "uniform": "rung.tuning",
}
"""Name → the part that has it."""


def __getattr__(name: str) -> Any:
    """Return one of the names of this package."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
