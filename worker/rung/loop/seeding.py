"""The start of a run in a framework's script."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from rung import core
from rung.torch import rng


class Arguments(TypedDict, total=False):
    """What `init` of every front door takes: the arguments of `rung.core.init`.

    They count where the script is started by hand.
    """

    hparams: Mapping[str, Any] | None
    config: Mapping[str, Any] | Path | str | None
    seed: int | None
    restore: str | None
    storage: Path | str | None


@contextlib.contextmanager
def started(**arguments: Unpack[Arguments]) -> Iterator[core.Context]:
    """Yield the run that this process is, with Python's, NumPy's and torch's generators seeded.

    The ranks of a run are all seeded alike, so that they make the same model.

    Args:
        arguments: those of `rung.core.init`.
    """
    with core.init(**arguments) as run:
        rng.seed_everything(run.seed)
        yield run


def deterministic(run: core.Context) -> bool:
    """Return whether the experiment asks for deterministic operators."""
    return bool((run.info.trial.config.get("reproducibility") or {}).get("deterministic"))
