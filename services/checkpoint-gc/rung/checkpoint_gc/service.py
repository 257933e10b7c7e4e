"""The components of checkpoint-gc: its processor, what it waits for, its timer, and deletions.

It also seals the ledger and archives it, because it has the object store.
"""

import secrets
from typing import Final

import structlog

from rung.backoff import Backoff
from rung.checkpoint_gc.archiver import archiving
from rung.checkpoint_gc.deletion import Deletion, Handles
from rung.checkpoint_gc.due import Clock, DeletionTimer, Scheduled, wall_clock
from rung.checkpoint_gc.processor import CheckpointGC
from rung.checkpoint_gc.settings import Sealing, Settings
from rung.events import topic
from rung.events.checkpoint import CheckpointReleased
from rung.events.directory import HoldReleased, HoldRequested
from rung.events.experiment import ExperimentEnded
from rung.events.trial import TrialClosed
from rung.ledger import Ledger
from rung.ledger.archive import ArchiveSettings
from rung.ledger.seals import SEALED, SealKey
from rung.runtime import Assignment, FactWriter
from rung.runtime.relay import Relay
from rung.runtime.retry import supervise
from rung.runtime.sealing.anchor import Anchor
from rung.runtime.sealing.sealer import Sealer, SealSettings
from rung.runtime.service import Component, Decider, Service, Shared
from rung.runtime.sink.sink import Sink
from rung.storage import ObjectStore

NAME: Final = "checkpoint-gc"
DELETER: Final = "checkpoint-gc-deleter"
TIMER: Final = "checkpoint-gc-timer"
_SOURCE: Final = "/rung/checkpoint-gc"
_HEADS_EVERY_S: Final = 15.0
"""Signed heads are objects in a store, which costs more than a row in a file."""
_BUSY_SHARE: Final = 0.5
"""In a cluster the sealer has no appends of searches and agents beside it in its process."""

_log = structlog.get_logger()


def components(
    store: ObjectStore | None, settings: Settings | None = None, *, clock: Clock = wall_clock
) -> tuple[Component, ...]:
    """Return what retires and deletes the checkpoints of all experiments of a ledger.

    Args:
        store: where the checkpoints lie; None to read the table alone.
        settings: of retries and snapshots; their defaults if not given.
        clock: by which deletions cannot be taken back any more.
    """
    settings = settings or Settings()
    scheduled = Scheduled()

    async def tell_time(ledger: Ledger, _: Assignment) -> None:
        origin = f"checkpoint-gc/{secrets.token_hex(8)}"
        writer = FactWriter(ledger, source=_SOURCE, origin=origin)
        timer = DeletionTimer(scheduled, writer, every_s=settings.due_every, clock=clock)
        await supervise(timer.run, name=TIMER, follows=False)

    return (
        Decider(CheckpointGC(), settings.snapshot_every, scheduled),
        RELAY,
        MODELS,
        Shared(TIMER, (topic.EXPERIMENTS,), tell_time, appends=(topic.EXPERIMENTS,)),
        Sink(
            DELETER,
            topic.RETIREMENTS,
            _SOURCE,
            Handles,
            Deletion(store).carry_out,
            appends=(topic.EXPERIMENTS, topic.METRICS, topic.LOGS, topic.REQUESTS),
            backoff=Backoff(settings.retry_min, settings.retry_max),
        ),
    )


def table(
    store: ObjectStore | None,
    settings: Settings,
    archive: ArchiveSettings | None,
    sealing: Sealing,
) -> tuple[Component, ...]:
    """Return all that a replica of checkpoint-gc runs.

    Args:
        store: where checkpoints lie; there must be one.
        settings: of `components`.
        archive: how to archive the ledger in the store as well; not at all if None.
        sealing: how to seal it.

    Raises:
        LedgerError: the key cannot be read.
    """
    assert store is not None, "--objects is required here"
    key = None if sealing.key is None else SealKey.parse(sealing.key)
    found = list(components(store, settings))
    if archive is not None:
        found.append(archiving(store, archive, key=key))
    if key is not None:
        found.append(sealer(sealing, key))
    elif sealing.cluster:
        _log.error(
            "the ledger is not sealed: a process that can write to it can alter it unseen",
            fix="give all replicas of checkpoint-gc the same secret in RUNG_SEAL_KEY",
        )
    return tuple(found)


def sealer(settings: Sealing, key: SealKey) -> Component:
    """Return what seals the ledger with a key."""
    every = SealSettings(
        every_s=settings.every_s, heads_every_s=_HEADS_EVERY_S, busy_share=_BUSY_SHARE
    )

    async def run(ledger: Ledger, assignment: Assignment) -> None:
        anchor = Anchor(settings.anchor) if settings.anchor else None
        await Sealer(ledger, key, settings=every, anchor=anchor).run(assignment)

    return Shared("sealer", (*SEALED, topic.SEALS), run)


RELAY: Final = Relay(
    "checkpoint-gc-intake",
    topic.SEARCHES,
    _SOURCE,
    TrialClosed | CheckpointReleased | ExperimentEnded,
    appends=(topic.EXPERIMENTS,),
)
"""What the searcher has closed and released."""
MODELS: Final = Relay(
    "checkpoint-gc-models",
    topic.DIRECTORY,
    _SOURCE,
    HoldRequested | HoldReleased,
    appends=(topic.EXPERIMENTS,),
)
"""What versions of models need, and need no more."""
SERVICE: Final = Service(NAME, components)
