"""The shell of checkpoint-gc: hosts the decider, brings it the ends of trials, deletes files.

It also seals the ledger and archives it, because it has the object store at hand.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from rung.checkpoint_gc.archiver import archive as keep_archive
from rung.checkpoint_gc.deletion import Deletion
from rung.checkpoint_gc.processor import CheckpointGC
from rung.checkpoint_gc.settings import Sealing, Settings
from rung.events import Event, Payload, topic
from rung.events.trial import TrialClosed, TrialEnded
from rung.ledger import Ledger
from rung.ledger.archive import TOPICS as ARCHIVED
from rung.ledger.archive import ArchiveSettings
from rung.ledger.seals import SEALED, SealKey
from rung.runtime import Share, forward, host
from rung.runtime.bootstrap import Opened
from rung.runtime.sealing.anchor import Anchor
from rung.runtime.sealing.sealer import Sealer, SealSettings
from rung.storage import ObjectStore

NAME: Final = "checkpoint-gc"
TOPICS: Final = (topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS)
"""Those whose partitions replicas share."""
TOPICS_ARCHIVING: Final = tuple(dict.fromkeys((*TOPICS, *ARCHIVED)))
"""And those of replicas that archive the ledger."""
TOPICS_SEALING: Final = tuple(dict.fromkeys((*TOPICS, *SEALED, topic.SEALS)))
"""And those of replicas that seal it."""
SOURCE: Final = "/rung/checkpoint-gc"
HEADS_EVERY_S: Final = 15.0
"""Signed heads are objects in a store, which costs more than a row in a file."""
BUSY_SHARE: Final = 0.5
"""In a cluster the sealer has no appends of searches and agents beside it in its process."""

_log = structlog.get_logger()


async def serve(  # noqa: PLR0913 - what it hosts
    ledger: Ledger,
    store: ObjectStore,
    settings: Settings | None = None,
    *,
    share: Share | None = None,
    archive: ArchiveSettings | None = None,
    sealer: Sealer | None = None,
    key: SealKey | None = None,
) -> None:
    """Collect the checkpoints of all experiments of a ledger until cancelled.

    Args:
        ledger: where checkpoints are announced and retirements go.
        store: where the checkpoints lie.
        settings: how often to try again; their defaults if not given.
        share: says which partitions are this replica's; all are if not given.
        archive: how to archive the ledger in the store as well; not at all if not given.
        sealer: seals the ledger; nothing does here if not given.
        key: of the installation; it signs where the archive ends.
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
            group.create_task(keep_archive(ledger, store, share=share, settings=archive, key=key))
        if sealer is not None:
            group.create_task(sealer.run(share))


def topics_of(*, archiving: bool, sealing: bool) -> tuple[str, ...]:
    """Return the topics whose partitions replicas share."""
    more = (*(TOPICS_ARCHIVING if archiving else ()), *(TOPICS_SEALING if sealing else ()))
    return tuple(dict.fromkeys((*TOPICS, *more)))


def run_with(
    settings: Settings, archive: ArchiveSettings | None, sealing: Sealing
) -> Callable[[Opened], Coroutine[Any, Any, None]]:
    """Return the service as `rung.runtime.bootstrap` runs it.

    Raises:
        LedgerError: the key cannot be read.
    """

    async def run(opened: Opened) -> None:
        key = None if sealing.key is None else await asyncio.to_thread(SealKey.parse, sealing.key)
        if key is None and sealing.cluster:
            _log.error(
                "the ledger is not sealed: who can write to it can alter it unseen",
                fix="give all replicas of checkpoint-gc the same secret in RUNG_SEAL_KEY",
            )
        sealer = None
        if key is not None:
            every = SealSettings(
                every_s=sealing.every_s, heads_every_s=HEADS_EVERY_S, busy_share=BUSY_SHARE
            )
            anchor = Anchor(sealing.anchor) if sealing.anchor else None
            sealer = Sealer(opened.ledger, key, settings=every, anchor=anchor)
        await serve(
            opened.ledger,
            opened.objects,
            settings,
            share=opened.share,
            archive=archive,
            sealer=sealer,
            key=key,
        )

    return run


async def intake(event: Event) -> Sequence[Payload]:
    """Turn the searcher's decision to close a trial into the fact that it ended."""
    match event.data:
        case TrialClosed() as closed:
            return [TrialEnded(experiment_id=closed.experiment_id, trial_id=closed.trial_id)]
        case _:
            return []
