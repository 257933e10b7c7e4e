"""The start of a run in a framework's script, common to the `init` of all adapters."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from rung import core
from rung.training import rng


class InitArguments(TypedDict, total=False):
    """The arguments of every adapter's `init`: those of `rung.core.init`.

    They are used in unmanaged runs.
    """

    hparams: Mapping[str, Any] | None
    config: Mapping[str, Any] | Path | str | None
    seed: int | None
    restore: str | None
    storage: Path | str | None


@contextlib.contextmanager
def seeded_run(**arguments: Unpack[InitArguments]) -> Iterator[core.Context]:
    """Yield the context of this process's run, with the global generators seeded.

    Torch's are included if it is imported. All ranks of a run get the same seed, so that they
    create the same model.

    Args:
        arguments: those of `rung.core.init`.
    """
    with core.init(**arguments) as run:
        rng.seed_everything(run.seed)
        yield run
