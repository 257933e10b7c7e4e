"""Deletion from the object store of what was retired: checkpoints, and whole experiments."""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

import structlog

from rung.events import Event, Payload
from rung.events.checkpoint import (
    CheckpointDeleted,
    CheckpointHeld,
    CheckpointHoldRefused,
    CheckpointRetired,
)
from rung.events.directory import HoldAnswered
from rung.events.experiment import ExperimentDeleted, ExperimentRetired
from rung.events.metric import EVER_MS, LogsDeleted, MetricsDeleted
from rung.events.trial import trial_id_of
from rung.runtime.metrics import catalog
from rung.storage import (
    ObjectDamaged,
    ObjectMissing,
    ObjectStore,
    delete_checkpoint,
    delete_checkpoints,
    is_area,
    read_manifest,
)

Handles = CheckpointRetired | CheckpointHeld | CheckpointHoldRefused | ExperimentRetired

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Ids that name a folder of their own and nothing else."""

_log = structlog.get_logger()


class Deletion:
    """Carries out retirements on an object store, and tells the directory what is held there.

    After a kill between the deletion and the record of it, both are repeated.
    """

    def __init__(self, store: ObjectStore | None) -> None:
        self._store = store

    async def carry_out(self, event: Event, _key: str) -> Sequence[Payload]:
        """Delete what was retired; return the facts that it is gone.

        Raises:
            ObjectError: the store refuses, or is away.
        """
        match event.data:
            case CheckpointRetired() as retired:
                return await self._checkpoint(event, retired)
            case CheckpointHeld() as held:
                return await self._held(held)
            case CheckpointHoldRefused() as refused:
                return [HoldAnswered(request=refused.request, refused=refused.reason)]
            case ExperimentRetired() as retired_whole:
                return await self._experiment(event, retired_whole)
            case _:
                raise AssertionError(event)

    async def _checkpoint(self, event: Event, retired: CheckpointRetired) -> Sequence[Payload]:
        ids = (retired.experiment_id, retired.checkpoint_id)
        if not (all(_PLAIN.fullmatch(name) for name in ids) and _may_be_area(retired.area)):
            _log.error(
                "checkpoint not deleted: no checkpoint can have this id",
                experiment=retired.experiment_id,
                checkpoint=retired.checkpoint_id,
                area=retired.area,
                event_id=event.id,
            )
            return []
        assert self._store is not None, "it deletes without a store"
        await asyncio.to_thread(delete_checkpoint, self._store.area(retired.area), *ids)
        catalog.CHECKPOINTS_DELETED.inc()
        return [
            CheckpointDeleted(
                experiment_id=retired.experiment_id,
                trial_id=retired.trial_id,
                checkpoint_id=retired.checkpoint_id,
            )
        ]

    async def _held(self, held: CheckpointHeld) -> Sequence[Payload]:
        """Tell the directory whether what stays is there: all that was retired before is gone."""
        assert self._store is not None, "it looks for checkpoints without a store"
        ids, refused = (held.experiment_id, held.checkpoint_id), ""
        if not (all(_PLAIN.fullmatch(name) for name in ids) and _may_be_area(held.area)):
            refused = f"no checkpoint can have the id {held.checkpoint_id[:100]!r}"
        else:
            try:
                await asyncio.to_thread(read_manifest, self._store.area(held.area), *ids)
            except (ObjectMissing, ObjectDamaged) as error:
                refused = f"checkpoint {held.checkpoint_id} is not in the object store: {error}"
        return [HoldAnswered(request=held.request, refused=refused)]

    async def _experiment(self, event: Event, retired: ExperimentRetired) -> Sequence[Payload]:
        """Delete all checkpoints of an experiment; the facts delete metrics and lines."""
        experiment_id = retired.experiment_id
        if not (_PLAIN.fullmatch(experiment_id) and _may_be_area(retired.area)):
            _log.error(
                "experiment not deleted: no experiment can have this id",
                experiment=experiment_id,
                area=retired.area,
                event_id=event.id,
            )
            return []
        assert self._store is not None, "it deletes without a store"
        area = self._store.area(retired.area)
        deleted = await asyncio.to_thread(delete_checkpoints, area, experiment_id)
        catalog.CHECKPOINTS_DELETED.inc(deleted)
        facts: list[Payload] = []
        for index in range(retired.trials):
            trial_id = trial_id_of(experiment_id, index)
            facts += (
                MetricsDeleted(experiment_id=experiment_id, trial_id=trial_id),
                LogsDeleted(
                    experiment_id=experiment_id,
                    trial_id=trial_id,
                    before_ms=EVER_MS,
                    lines=0,
                    size_bytes=0,
                ),
            )
        return [*facts, ExperimentDeleted(experiment_id=experiment_id)]


def _may_be_area(name: str) -> bool:
    return not name or is_area(name)
