"""What the gateway answers from: its projections, and the queries on them."""

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from rung.gateway.projections import deadletters, experiments, pools
from rung.gateway.projections.deadletters import Letter, LetterProjection, LetterState
from rung.gateway.projections.experiment import Checkpoint, Experiment
from rung.gateway.projections.experiments import ALL, ExperimentProjection, Selection, Summary
from rung.gateway.projections.pools import Pool, PoolProjection
from rung.ledger import Ledger
from rung.runtime.projection import Projection, Projections
from rung.runtime.projection.merge import starts_of
from rung.runtime.projection.runner import Behind, Place

P = ParamSpec("P")
T = TypeVar("T")

READER: Final = "gateway"
"""Who the dead letters of these projections are of."""
_SHOWN: Final = 10
PROJECTIONS: Final[list[Callable[[], Projection]]] = [
    ExperimentProjection,
    PoolProjection,
    LetterProjection,
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


class ReadModels:
    """What the gateway knows; everything in it comes from the ledger alone."""

    def __init__(self, ledger: Ledger, folder: Path | None = None) -> None:
        """Take what is folded.

        Args:
            ledger: followed.
            folder: where the files of the projections lie; in a temporary one if not given.
        """
        self._projections = Projections(
            ledger, [make() for make in PROJECTIONS], reader=READER, folder=folder
        )
        self._experiments = self._projections.stores[ExperimentProjection.name]
        self._pools = self._projections.stores[PoolProjection.name]
        self._letters = self._projections.stores[LetterProjection.name]

    async def start(self, *, wait_s: float) -> None:
        """Follow the ledger in the background.

        Args:
            wait_s: how long to wait at most until what it holds now is folded.

        Raises:
            LedgerError: it cannot be followed.
        """
        await self._projections.start(wait_s=wait_s)

    async def failed(self) -> None:
        """Wait for ever, or for the error that ends a projection.

        Raises:
            LedgerError: one that does not pass by itself.
        """
        await self._projections.failed()

    async def close(self) -> None:
        """Stop following, and close the files."""
        await self._projections.close()

    def behind(self) -> Behind | None:
        """Return how far the projections are, None once they have caught up with the start."""
        return self._projections.behind()

    async def reached(self, positions: Mapping[Place, int], *, wait_s: float) -> bool:
        """Wait until records are folded; return whether they are.

        Args:
            positions: of the last record of each topic and partition.
            wait_s: how long to wait at most.
        """
        return await self._projections.reached(positions, wait_s=wait_s)

    async def read(
        self,
        projection: type[Projection],
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what a query on the tables of a projection returns."""
        return await self._projections.stores[projection.name].read(query, *args, **kwargs)

    async def experiment(
        self, experiment_id: str, *, validations: int | None = ALL
    ) -> Experiment | None:
        """Return a submitted experiment by its whole id.

        Args:
            experiment_id: the whole id.
            validations: of which trial all validations are there: of `ALL`, of one by its index,
                or of none; of others the last one is.
        """
        found = await self._experiments.read(
            experiments.read_experiment, experiment_id, validations=validations
        )
        return found if found is not None and found.submission is not None else None

    async def find_id(self, prefix: str) -> str | None:
        """Return the one id of an experiment that is, or begins with, `prefix`.

        Raises:
            Ambiguous: there are several.
        """
        if not prefix:
            return None
        return _the_one(
            prefix, await self._experiments.read(experiments.ids_from, prefix, _SHOWN + 1)
        )

    async def starts(self, experiment_id: str) -> dict[str, int]:
        """Return, per topic, a position before which nothing of the experiment lies."""
        return await self._experiments.read(starts_of, experiment_id)

    async def checkpoint(self, checkpoint_id: str) -> tuple[Experiment, Checkpoint] | None:
        """Return a checkpoint by its whole id, and its experiment."""
        owner = await self._experiments.read(experiments.owner_of, checkpoint_id)
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
        found = await self._experiments.read(experiments.checkpoints_from, prefix, _SHOWN + 1)
        name = _the_one(prefix, found)
        return None if name is None else await self.checkpoint(name)

    async def experiments(self, selection: Selection) -> list[Summary]:
        """Return experiments, without validations but the last of each trial."""
        return await self._experiments.read(experiments.list_experiments, selection)

    def count_experiments(self) -> dict[str, int]:
        """Return the number of experiments in each state."""
        return self._experiments.peek(experiments.count_experiments)

    def count_trials(self) -> dict[str, int]:
        """Return the number of trials in each state."""
        return self._experiments.peek(experiments.count_trials)

    async def pools(self) -> list[Pool]:
        """Return every resource pool, by name."""
        return await self._pools.read(pools.read_pools)

    def agents(self) -> list[Pool]:
        """Return every resource pool, without what waits and runs there."""
        return self._pools.peek(pools.read_agents)

    async def asked_of_pool(self, pool: str, origin: str) -> str | None:
        """Return what a client's request asked of a pool, by its origin; None: nothing so far."""
        return await self._pools.read(pools.request_of, pool, origin)

    async def letters(
        self,
        state: LetterState | None = None,
        *,
        before: tuple[str, str, int] | None = None,
        limit: int = -1,
    ) -> list[Letter]:
        """Return dead letters, the newest first; see `deadletters.read_letters`."""
        return await self._letters.read(
            deadletters.read_letters, state, before=before, limit=limit
        )

    async def letter(self, letter_id: str) -> Letter | None:
        """Return a dead letter by its id."""
        return await self._letters.read(deadletters.read_letter, letter_id)

    async def asked_of_letters(self, origin: str) -> str | None:
        """Return what a client's request asked for, by its origin; None: nothing so far."""
        return await self._letters.read(deadletters.wish_by, origin)

    async def open_letters(self) -> int:
        """Return how many dead letters are open."""
        return await self._letters.read(deadletters.count_open)


def _the_one(prefix: str, found: list[str]) -> str | None:
    if prefix in found:
        return prefix
    if len(found) > 1:
        raise Ambiguous(found[:_SHOWN])
    return found[0] if found else None
