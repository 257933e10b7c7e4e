"""The start of a run in a framework's script."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rung import core
from rung.torch import rng


@contextlib.contextmanager
def started(
    *,
    hparams: Mapping[str, Any] | None,
    config: Mapping[str, Any] | Path | str | None,
    seed: int | None,
    restore: str | None,
    storage: Path | str | None,
) -> Iterator[core.Context]:
    """Yield the run that this process is, with Python's, NumPy's and torch's generators seeded.

    The arguments are those of `rung.core.init`, and count where the script is started by hand.
    """
    run = core.init(hparams=hparams, config=config, seed=seed, restore=restore, storage=storage)
    with run:
        rng.seed_everything(run.seed)
        yield run


def deterministic(run: core.Context) -> bool:
    """Return whether the experiment asks for deterministic operators."""
    return bool((run.info.trial.config.get("reproducibility") or {}).get("deterministic"))
