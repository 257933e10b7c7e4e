"""Deletion of retired checkpoints from the object store."""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

import structlog

from rung.events import Event, Payload
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired
from rung.runtime.metrics import catalog
from rung.storage import ObjectStore, delete_checkpoint

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Ids that name a folder of their own and nothing else."""

_log = structlog.get_logger()


class Deletion:
    """Carries out retirements on an object store.

    After a kill between the deletion and the record of it, both are repeated.
    """

    def __init__(self, store: ObjectStore | None) -> None:
        self._store = store

    async def carry_out(self, event: Event, _key: str) -> Sequence[Payload]:
        """Delete a retired checkpoint's files; return the fact that they are gone.

        Raises:
            ObjectError: the store refuses, or is away.
        """
        retired = event.data
        assert isinstance(retired, CheckpointRetired), retired
        ids = (retired.experiment_id, retired.checkpoint_id)
        if not all(_PLAIN.fullmatch(name) for name in ids):
            _log.error(
                "checkpoint not deleted: no checkpoint can have this id",
                experiment=retired.experiment_id,
                checkpoint=retired.checkpoint_id,
                event_id=event.id,
            )
            return []
        assert self._store is not None, "it deletes without a store"
        await asyncio.to_thread(delete_checkpoint, self._store, *ids)
        catalog.CHECKPOINTS_DELETED.inc()
        return [
            CheckpointDeleted(
                experiment_id=retired.experiment_id,
                trial_id=retired.trial_id,
                checkpoint_id=retired.checkpoint_id,
            )
        ]
