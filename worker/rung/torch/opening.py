"""From a script to its trial: `rung.torch.init`."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rung import core
from rung.torch.context import TrialContext
from rung.torch.exactness import demand
from rung.torch.parallel import Parallel
from rung.torch.rng import seed_everything


@contextlib.contextmanager
def init(  # noqa: PLR0913 - each has a default
    *,
    hparams: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | Path | str | None = None,
    seed: int | None = None,
    restore: str | None = None,
    storage: Path | str | None = None,
    aggregation_frequency: int | None = None,
    deterministic: bool | None = None,
) -> Iterator[TrialContext]:
    """Yield the context of this process's trial; every generator is seeded.

    The first five arguments count where the script is started by hand.

    Args:
        hparams: see `rung.core.init`.
        config: see `rung.core.init`.
        seed: see `rung.core.init`.
        restore: see `rung.core.init`.
        storage: see `rung.core.init`.
        aggregation_frequency: how many batches make one step of the optimizer;
            `optimizations.aggregation_frequency` of the experiment file by default.
        deterministic: refuse operations that have no deterministic implementation, on GPUs;
            `reproducibility.deterministic` of the experiment file by default.
    """
    run = core.init(hparams=hparams, config=config, seed=seed, restore=restore, storage=storage)
    with run:
        file = run.info.trial.config
        if deterministic is None:
            deterministic = bool((file.get("reproducibility") or {}).get("deterministic"))
        if deterministic:
            demand()
        optimizations = file.get("optimizations") or {}
        if aggregation_frequency is None:
            aggregation_frequency = int(optimizations.get("aggregation_frequency") or 1)
        averaged = optimizations.get("average_aggregated_gradients") is not False
        parallel = Parallel(run)
        seed_everything(run.seed)
        made = TrialContext(
            run,
            parallel,
            aggregation_frequency,
            average_aggregated_gradients=averaged,
            deterministic=deterministic,
        )
        yield made
        made.board.close()
        parallel.close()
