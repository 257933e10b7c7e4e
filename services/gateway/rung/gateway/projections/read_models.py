"""The gateway's projections, and lookups in them."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from rung.gateway.projections import experiments, pools
from rung.gateway.projections.deadletters import DeadLetterProjection
from rung.gateway.projections.experiment import Checkpoint, Experiment
from rung.gateway.projections.experiments import ALL, ExperimentProjection, Selection, Summary
from rung.gateway.projections.pools import Pool, PoolProjection
from rung.ledger import Ledger
from rung.runtime.projection import Projection, Projections

P = ParamSpec("P")
T = TypeVar("T")

READER: Final = "gateway"
"""Their name in dead letters."""
_SHOWN: Final = 10
PROJECTIONS: Final[list[Callable[[], Projection]]] = [
    ExperimentProjection,
    PoolProjection,
    DeadLetterProjection,
]
"""The table of projections: a new one is one line."""


class Ambiguous(Exception):
    """Several things have an id that begins so.

    Attributes:
        ids: some of them.
    """

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        super().__init__(", ".join(ids))


class ReadModels(Projections):
    """The gateway's projections; everything in them comes from the ledger alone."""

    def __init__(self, ledger: Ledger, folder: Path | None = None) -> None:
        """Prepare the projections.

        Args:
            ledger: followed.
            folder: where the files of the projections lie; in a temporary one if not given.
        """
        super().__init__(ledger, [make() for make in PROJECTIONS], reader=READER, folder=folder)

    async def read(
        self,
        projection: type[Projection],
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what a query on the tables of a projection returns."""
        return await self.stores[projection.name].read(query, *args, **kwargs)

    def peek(self, projection: type[Projection], query: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a short query returns, on the event loop."""
        return self.stores[projection.name].peek(query)

    async def experiment(
        self, experiment_id: str, *, validations: int | None = ALL
    ) -> Experiment | None:
        """Return a submitted experiment by its whole id.

        Args:
            experiment_id: the whole id.
            validations: the trial whose validations are loaded: `ALL`, an index, or none; of
                others the last one is.
        """
        found = await self.read(
            ExperimentProjection,
            experiments.read_experiment,
            experiment_id,
            validations=validations,
        )
        return found if found is not None and found.submission is not None else None

    async def find_id(self, prefix: str) -> str | None:
        """Return the one id of an experiment that is, or begins with, `prefix`.

        Raises:
            Ambiguous: there are several.
        """
        if not prefix:
            return None
        found = await self.read(ExperimentProjection, experiments.ids_from, prefix, _SHOWN + 1)
        return _the_one(prefix, found)

    async def checkpoint(self, checkpoint_id: str) -> tuple[Experiment, Checkpoint] | None:
        """Return a checkpoint by its whole id, and its experiment."""
        owner = await self.read(ExperimentProjection, experiments.owner_of, checkpoint_id)
        if owner is None:
            return None
        experiment_id, index = owner
        experiment = await self.experiment(experiment_id, validations=index)
        if experiment is None or checkpoint_id not in experiment.checkpoints:
            return None
        return experiment, experiment.checkpoints[checkpoint_id]

    async def find_checkpoint(self, prefix: str) -> tuple[Experiment, Checkpoint] | None:
        """Return the one checkpoint whose id is, or begins with, `prefix`, and its experiment.

        Raises:
            Ambiguous: there are several.
        """
        if not prefix:
            return None
        query = experiments.checkpoints_from
        found = await self.read(ExperimentProjection, query, prefix, _SHOWN + 1)
        name = _the_one(prefix, found)
        return None if name is None else await self.checkpoint(name)

    async def experiments(self, selection: Selection) -> list[Summary]:
        """Return experiments, without validations but the last of each trial."""
        return await self.read(ExperimentProjection, experiments.list_experiments, selection)

    def count_experiments(self) -> dict[str, int]:
        """Return the number of experiments in each state."""
        return self.peek(ExperimentProjection, experiments.count_experiments)

    def agents(self) -> list[Pool]:
        """Return every resource pool, without its allocations."""
        return self.peek(PoolProjection, pools.read_agents)


def _the_one(prefix: str, found: list[str]) -> str | None:
    if prefix in found:
        return prefix
    if len(found) > 1:
        raise Ambiguous(found[:_SHOWN])
    return found[0] if found else None
