"""The start of a Lightning script."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rung import core
from rung.loop.seeding import deterministic, started


@contextlib.contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | Path | str | None = None,
    seed: int | None = None,
    restore: str | None = None,
    storage: Path | str | None = None,
) -> Iterator[core.Context]:
    """Yield the run that this process is; every generator is seeded.

    Make the module inside. The arguments are those of `rung.core.init`.
    """
    with started(
        hparams=hparams, config=config, seed=seed, restore=restore, storage=storage
    ) as run:
        if deterministic(run):
            torch.use_deterministic_algorithms(mode=True)
        yield run
