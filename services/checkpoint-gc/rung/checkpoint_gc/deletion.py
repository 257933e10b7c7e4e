"""Deletes what was retired, and says so once it is gone."""

import asyncio
import itertools
import re
from collections.abc import Sequence
from typing import Final

import structlog

from rung.checkpoint_gc.settings import Settings
from rung.events import Event, Payload
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired
from rung.runtime.health.loops import waiting_for
from rung.runtime.metrics import catalog
from rung.storage import ObjectError, ObjectStore, delete_checkpoint

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Ids that name a folder of their own and nothing else."""
_TRIES: Final = 3
"""Of a deletion that the store refuses for a reason that does not pass by itself."""

_log = structlog.get_logger()


class Deletion:
    """Carries out retirements on an object store.

    It may be killed between the deletion and the record of it: the retirement is met again, the
    deletion repeated on what is no longer there, and the record made.

    A store that is away is waited for. One that never lets go of a checkpoint (it is locked, or
    somebody else's) holds up no other: the deletion is left to whoever calls, to be tried later.
    """

    def __init__(self, store: ObjectStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    async def carry_out(self, event: Event) -> Sequence[Payload]:
        """Delete a retired checkpoint's files; return the fact that they are gone.

        Raises:
            ObjectError: the store refuses, and not because it is away.
        """
        retired = event.data
        if not isinstance(retired, CheckpointRetired):
            return []
        ids = (retired.experiment_id, retired.checkpoint_id)
        if not all(_PLAIN.fullmatch(name) for name in ids):
            _log.error(
                "checkpoint not deleted: no checkpoint can have this id",
                experiment=retired.experiment_id,
                checkpoint=retired.checkpoint_id,
                event_id=event.id,
            )
            return []
        with waiting_for("the object store"):
            await self._delete(retired, event.id)
        catalog.CHECKPOINTS_DELETED.of().inc()
        return [
            CheckpointDeleted(
                experiment_id=retired.experiment_id,
                trial_id=retired.trial_id,
                checkpoint_id=retired.checkpoint_id,
            )
        ]

    async def _delete(self, retired: CheckpointRetired, event_id: str) -> None:
        """Delete in a thread, again and again while the store is away."""
        wait_s = self._settings.retry_min
        for tries in itertools.count(1):
            try:
                await asyncio.to_thread(
                    delete_checkpoint, self._store, retired.experiment_id, retired.checkpoint_id
                )
            except ObjectError as error:
                if tries >= _TRIES and not error.retriable:
                    _log.error(
                        "checkpoint not deleted: the store does not let it go; others are, and "
                        "this one is tried again every hour",
                        experiment=retired.experiment_id,
                        checkpoint=retired.checkpoint_id,
                        event_id=event_id,
                        error=str(error),
                    )
                    raise
                _log.warning(
                    "checkpoint not deleted yet",
                    experiment=retired.experiment_id,
                    checkpoint=retired.checkpoint_id,
                    event_id=event_id,
                    error=str(error),
                    wait_s=wait_s,
                )
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, self._settings.retry_max)
            else:
                return
