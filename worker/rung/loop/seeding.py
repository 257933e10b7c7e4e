"""The start of a run in a framework's script."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rung import core
from rung.events import RungError
from rung.torch import rng

_SIZE_VARIABLE: Final = "RUNG_SIZE"
"""Environment variable with the number of processes that the run has."""


class OneProcessOnly(RungError):
    """A run of several processes in a front door that trains in one."""


@contextlib.contextmanager
def started(  # noqa: PLR0913 - the arguments of `core.init`
    *,
    hparams: Mapping[str, Any] | None,
    config: Mapping[str, Any] | Path | str | None,
    seed: int | None,
    restore: str | None,
    storage: Path | str | None,
    several: bool = False,
) -> Iterator[core.Context]:
    """Yield the run that this process is, with Python's, NumPy's and torch's generators seeded.

    The arguments are those of `rung.core.init`, and count where the script is started by hand.
    `several` says that the front door knows what to do in one of several processes.

    Raises:
        OneProcessOnly: the run has several processes, which would train the same model apart.
    """
    if not several:
        refuse_several()
    run = core.init(hparams=hparams, config=config, seed=seed, restore=restore, storage=storage)
    with run:
        rng.seed_everything(run.seed)
        yield run


def refuse_several() -> None:
    """Refuse to be one of several processes of a run.

    Raises:
        OneProcessOnly: this is one of several.
    """
    size = os.environ.get(_SIZE_VARIABLE) or "1"
    if size != "1":
        raise OneProcessOnly(
            f"resources.slots_per_trial: {size} makes {size} processes, and this front door "
            "trains in one: each would train the whole model by itself and all would report. Set "
            "slots_per_trial: 1, or train with rung.torch or rung.core, which know of ranks"
        )


def deterministic(run: core.Context) -> bool:
    """Return whether the experiment asks for deterministic operators."""
    return bool((run.info.trial.config.get("reproducibility") or {}).get("deterministic"))
