"""`rung.init`: enters a run and prepares the framework that the script has imported."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rung.core import _context
from rung.core._context import Context

_ADAPTERS: Final = ("rung.keras", "rung.tensorflow", "rung.lightning", "rung.transformers")
"""Adapters that prepare their framework for a run; the first one in this list is used."""


@contextlib.contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | Path | str | None = None,
    seed: int | None = None,
    restore: str | None = None,
    storage: Path | str | None = None,
) -> Iterator[Context]:
    """Yield the context of this process's run, for a script with any framework or none.

    Where the script has imported `rung.keras`, `rung.tensorflow`, `rung.lightning` or
    `rung.transformers`, the framework is prepared as by that module's own `init`: its generators
    are seeded, and the ranks of the run are connected. So import it first, and create the model
    inside the block. With `rung.torch`, `rung.torch.trial_context(run)` does that. This function
    imports no framework.

    Args:
        hparams: see `rung.core.init`.
        config: see `rung.core.init`.
        seed: see `rung.core.init`.
        restore: see `rung.core.init`.
        storage: see `rung.core.init`.
    """
    adapters = [sys.modules[name] for name in _ADAPTERS if name in sys.modules]
    begin = adapters[0].init if adapters else _context.init
    with begin(hparams=hparams, config=config, seed=seed, restore=restore, storage=storage) as run:
        yield run
