"""The searcher's shell: hosts the machine, and brings it what the scheduler decided."""

import asyncio
from collections.abc import Sequence
from typing import Final

from rung.events import Event, Payload
from rung.events import topic as topics
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.trial import RunEnded
from rung.ledger import Ledger
from rung.runtime import Share, forward, host
from rung.searcher.metrics import Restarts
from rung.searcher.processor import Searcher
from rung.searcher.settings import Settings

NAME: Final = "searcher"
TOPICS: Final = (topics.EXPERIMENTS, topics.PLACEMENTS)
"""Those whose partitions replicas share."""
_SOURCE: Final = "/rung/searcher"


async def serve(
    ledger: Ledger, settings: Settings | None = None, *, share: Share | None = None
) -> None:
    """Run the searches of a ledger until cancelled.

    Args:
        ledger: where experiments come from and decisions go; the caller closes it.
        settings: their defaults if not given.
        share: says which partitions are this replica's; all are if not given.
    """
    settings = settings or Settings()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            host(
                ledger,
                Searcher(),
                snapshot_every=settings.snapshot_every,
                share=share,
                observer=Restarts(),
            )
        )
        intake = forward(
            ledger,
            name="searcher-intake",
            topic=topics.PLACEMENTS,
            source=_SOURCE,
            translate=translate,
            share=share,
        )
        group.create_task(intake)


async def translate(event: Event) -> Sequence[Payload]:
    """Return the end of a run that its agent will not report, if the event is one."""
    match event.data:
        case AllocationLost() as lost:
            return [
                RunEnded(
                    experiment_id=lost.experiment_id,
                    trial_id=lost.trial_id,
                    run=lost.run,
                    outcome="lost",
                    reason=lost.reason,
                )
            ]
        case AllocationDropped() as dropped:
            return [
                RunEnded(
                    experiment_id=dropped.experiment_id,
                    trial_id=dropped.trial_id,
                    run=dropped.run,
                    outcome="dropped",
                    reason=dropped.reason,
                )
            ]
        case _:
            return []
