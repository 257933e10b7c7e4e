"""The gateway's projections, and lookups in them."""

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from rung.gateway.projections import experiments, pools
from rung.gateway.projections.acts import ActProjection
from rung.gateway.projections.answers import DirectoryProjection
from rung.gateway.projections.deadletters import (
    DeadLetter,
    DeadLetterProjection,
    count_open,
    letters_of,
    read_dropped,
)
from rung.gateway.projections.deliveries import DeliveryProjection
from rung.gateway.projections.experiment import Checkpoint, Experiment
from rung.gateway.projections.experiments import (
    ALL,
    ExperimentProjection,
    Selection,
    Summary,
    TrialPage,
    TrialSelection,
    Visible,
)
from rung.gateway.projections.pools import Pool, PoolProjection
from rung.gateway.projections.usage import UsageProjection
from rung.ledger import Ledger
from rung.runtime.projection import Projection, Projections
from rung.runtime.projection.merge import rejected_of
from rung.storage import ObjectStore

P = ParamSpec("P")
T = TypeVar("T")

READER: Final = "gateway"
"""Their name in dead letters."""
_SHOWN: Final = 10
_CHECKPOINT_DOTS: Final = 3
"""Of a checkpoint's id: EXPERIMENT.TRIAL.RUN.BATCHES."""
PROJECTIONS: Final[list[Callable[[], Projection]]] = [
    ExperimentProjection,
    PoolProjection,
    DeadLetterProjection,
    ActProjection,
    DirectoryProjection,
    UsageProjection,
    DeliveryProjection,
]
"""The table of projections: a new one is one line."""


class Ambiguous(Exception):
    """Several things have this name, or an id that begins so.

    Attributes:
        ids: some of them.
    """

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        super().__init__(", ".join(ids))


class ReadModels(Projections):
    """The gateway's projections; everything in them comes from the ledger alone."""

    def __init__(
        self, ledger: Ledger, folder: Path | None = None, objects: ObjectStore | None = None
    ) -> None:
        """Prepare the projections.

        Args:
            ledger: followed.
            folder: where the files of the projections lie; in a temporary one if not given.
            objects: where replicas publish copies of these files; none if not given.
        """
        made = [make() for make in PROJECTIONS]
        super().__init__(ledger, made, reader=READER, folder=folder, objects=objects)

    async def read(
        self,
        projection: type[Projection],
        query: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what a query on the tables of a projection returns."""
        return await self.stores[projection.name].read(query, *args, **kwargs)

    async def not_shown(self) -> list[DeadLetter]:
        """Return the dead letters of what these very projections could not fold."""
        rejected = [each for it in self.stores.values() for each in await it.read(rejected_of)]
        if not rejected:
            return []
        return letters_of(READER, rejected, await self.read(DeadLetterProjection, read_dropped))

    async def count_dead_letters(self) -> int:
        """Return how many dead letters are open."""
        own = sum(it.state == "open" for it in await self.not_shown())
        return own + await self.read(DeadLetterProjection, count_open)

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

    async def head(self, experiment_id: str) -> Experiment | None:
        """Return a submitted experiment without its trials, checkpoints and requests."""
        found = await self.read(ExperimentProjection, experiments.read_head, experiment_id)
        return found if found is not None and found.submission is not None else None

    async def trials(self, experiment_id: str, selection: TrialSelection) -> TrialPage | None:
        """Return some trials of a submitted experiment."""
        of, query = ExperimentProjection, experiments.list_trials
        found = await self.read(of, query, experiment_id, selection)
        return found if found is not None and found.experiment.submission is not None else None

    async def find_id(
        self, reference: str, visible: Visible = None, *, hidden: bool = False
    ) -> str | None:
        """Return the one id of an experiment that is or begins with `reference`, or has that name.

        Args:
            reference: to it.
            visible: the projects that are there for the one who asks.
            hidden: whether the name may be that of one whose deletion can be taken back, where
                no other has it.

        Raises:
            Ambiguous: there are several.
        """
        if not reference:
            return None
        of, limit = ExperimentProjection, _SHOWN + 1
        found = await self.read(of, experiments.ids_from, reference, limit, visible)
        if reference not in found:
            found += await self.read(of, experiments.ids_named, reference, limit, visible)
        if hidden and not found:
            named = partial(experiments.ids_named, hidden=True)
            found = await self.read(of, named, reference, limit, visible)
        return _the_one(reference, list(dict.fromkeys(found)))

    async def near(self, reference: str, visible: Visible = None) -> list[str]:
        """Return ids and names of experiments that are spelt nearly so."""
        return await self.read(ExperimentProjection, experiments.near, reference, visible)

    async def projects_of(self, experiment_ids: Iterable[str]) -> dict[str, str]:
        """Return the projects of submitted experiments, deleted ones among them."""
        return await self.read(ExperimentProjection, experiments.projects_of, experiment_ids)

    async def checkpoint(
        self, checkpoint_id: str, visible: Visible = None
    ) -> tuple[Experiment, Checkpoint] | None:
        """Return a checkpoint by its whole id, and its experiment."""
        query = experiments.owner_of
        owner = await self.read(ExperimentProjection, query, checkpoint_id, visible)
        if owner is None:
            return None
        experiment_id, index = owner
        experiment = await self.experiment(experiment_id, validations=index)
        if experiment is None or checkpoint_id not in experiment.checkpoints:
            return None
        return experiment, experiment.checkpoints[checkpoint_id]

    async def find_checkpoint(
        self, reference: str, visible: Visible = None
    ) -> tuple[Experiment, Checkpoint] | None:
        """Return the one checkpoint that a reference names, and its experiment.

        That is an unambiguous beginning of its id, or the id with the name of the experiment, or
        with a beginning of that, in place of the experiment's id.

        Raises:
            Ambiguous: there are several.
        """
        if not reference:
            return None
        name = await self._checkpoint_from(reference, visible)
        owner, *rest = reference.rsplit(".", _CHECKPOINT_DOTS)
        if name is None and len(rest) == _CHECKPOINT_DOTS:
            found = await self.find_id(owner, visible)
            if found is not None:
                name = await self._checkpoint_from(".".join([found, *rest]), visible)
        return None if name is None else await self.checkpoint(name, visible)

    async def _checkpoint_from(self, prefix: str, visible: Visible) -> str | None:
        query = experiments.checkpoints_from
        found = await self.read(ExperimentProjection, query, prefix, _SHOWN + 1, visible)
        return _the_one(prefix, found)

    async def experiments(self, selection: Selection) -> list[Summary]:
        """Return experiments, without their trials and checkpoints."""
        return await self.read(ExperimentProjection, experiments.list_experiments, selection)

    def count_experiments(self, visible: Visible = None) -> dict[str, int]:
        """Return the number of experiments in each state."""
        return self.peek(
            ExperimentProjection, lambda db: experiments.count_experiments(db, visible)
        )

    def agents(self) -> list[Pool]:
        """Return every resource pool, without its allocations."""
        return self.peek(PoolProjection, pools.read_agents)


def _the_one(prefix: str, found: list[str]) -> str | None:
    if prefix in found:
        return prefix
    if len(found) > 1:
        raise Ambiguous(found[:_SHOWN])
    return found[0] if found else None
