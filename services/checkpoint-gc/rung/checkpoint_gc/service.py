"""The shell of checkpoint-gc: hosts the decider, brings it the ends of trials, deletes files.

It also archives the ledger, because it has the object store at hand.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from rung.archive import TOPICS as ARCHIVED
from rung.archive import ArchiveSettings
from rung.archive import archive as keep_archive
from rung.checkpoint_gc.config import Settings
from rung.checkpoint_gc.deletion import Deletion
from rung.checkpoint_gc.machine import CheckpointGC
from rung.events import Event, Payload, topic
from rung.events.trial import TrialClosed, TrialEnded
from rung.host import Share, forward, host
from rung.ledger import Ledger
from rung.objects import ObjectStore

NAME: Final = "checkpoint-gc"
TOPICS: Final = (topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS)
"""Those whose partitions replicas share."""
TOPICS_ARCHIVING: Final = tuple(dict.fromkeys((*TOPICS, *ARCHIVED)))
"""And those of replicas that archive the ledger."""
SOURCE: Final = "/rung/checkpoint-gc"


async def serve(
    ledger: Ledger,
    store: ObjectStore,
    settings: Settings | None = None,
    *,
    share: Share | None = None,
    archive: ArchiveSettings | None = None,
) -> None:
    """Collect the checkpoints of all experiments of a ledger until cancelled.

    Args:
        ledger: where checkpoints are announced and retirements go.
        store: where the checkpoints lie.
        settings: how often to try again; their defaults if not given.
        share: says which partitions are this replica's; all are if not given.
        archive: how to archive the ledger in the store as well; not at all if not given.
    """
    settings = settings or Settings()
    deletion = Deletion(store, settings)
    async with asyncio.TaskGroup() as group:
        group.create_task(
            host(ledger, CheckpointGC(), snapshot_every=settings.snapshot_every, share=share)
        )
        group.create_task(
            forward(
                ledger,
                name="checkpoint-gc-intake",
                topic=topic.SEARCHES,
                source=SOURCE,
                translate=intake,
                share=share,
            )
        )
        group.create_task(
            forward(
                ledger,
                name="checkpoint-gc-deleter",
                topic=topic.RETIREMENTS,
                source=SOURCE,
                translate=deletion.carry_out,
                share=share,
                acts=True,
            )
        )
        if archive is not None:
            group.create_task(keep_archive(ledger, store, share=share, settings=archive))


async def intake(event: Event) -> Sequence[Payload]:
    """Turn the searcher's decision to close a trial into the fact that it ended."""
    match event.data:
        case TrialClosed() as closed:
            return [TrialEnded(experiment_id=closed.experiment_id, trial_id=closed.trial_id)]
        case _:
            return []
