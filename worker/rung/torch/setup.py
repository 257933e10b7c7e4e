"""The start of a torch script: `rung.torch.init` and `trial_context`."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rung import core
from rung.torch.context import TrialContext
from rung.torch.data_parallel import Parallel
from rung.torch.determinism import demand
from rung.training import determinism
from rung.training.rng import seed_everything


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

    The first five arguments are used in unmanaged runs.

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
        yield trial_context(
            run, aggregation_frequency=aggregation_frequency, deterministic=deterministic
        )


def trial_context(
    run: core.Context,
    *,
    aggregation_frequency: int | None = None,
    deterministic: bool | None = None,
) -> TrialContext:
    """Return the context of a run's trial, created at the first call; every generator is seeded.

        with rung.init() as run:
            rt.Trainer(MyTrial(rt.trial_context(run))).fit()

    Where the run has several slots, its ranks are connected: all of them must call this.

    Args:
        run: from `rung.init` or `rung.core.init`.
        aggregation_frequency: see `init`.
        deterministic: see `init`.
    """
    global _current  # noqa: PLW0603 - a process trains one trial
    if _current is not None and _current.core is run:
        return _current
    file = run.info.trial.config
    if deterministic is None:
        deterministic = determinism.deterministic(run)
    if deterministic:
        demand()
    optimizations = file.get("optimizations") or {}
    if aggregation_frequency is None:
        aggregation_frequency = int(optimizations.get("aggregation_frequency") or 1)
    averaged = optimizations.get("average_aggregated_gradients") is not False
    parallel = Parallel(run)
    run.at_success(parallel.close)
    seed_everything(run.seed)
    made = TrialContext(
        run,
        parallel,
        aggregation_frequency,
        average_aggregated_gradients=averaged,
        deterministic=deterministic,
    )
    run.at_success(made.board.close)
    _current = made
    return made


def current_context() -> TrialContext:
    """Return the context that this process created last.

    Raises:
        RuntimeError: it created none.
    """
    if _current is None:
        raise RuntimeError("create a context first: `with rung.init() as run: trial_context(run)`")
    return _current


_current: TrialContext | None = None
