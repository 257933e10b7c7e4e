"""The scheduler's shell: hosts the decider, brings it requests and watches the agents."""

import asyncio
import secrets
from collections.abc import Sequence

from rung.events import Event, Payload, topic
from rung.events.allocation import AllocationRequested, AllocationWithdrawn
from rung.events.trial import RunRequested, RunWithdrawn, allocation_id_of
from rung.host import FactWriter, forward, host
from rung.host.supervise import supervise
from rung.ledger import Ledger
from rung.scheduler.config import Settings
from rung.scheduler.machine import Scheduler
from rung.scheduler.watch import Clock, Monotonic, Watch

SOURCE = "/rung/scheduler"


async def serve(
    ledger: Ledger, settings: Settings | None = None, *, clock: Clock | None = None
) -> None:
    """Schedule all pools of a ledger until cancelled.

    Args:
        ledger: where requests come from and grants go.
        settings: timeouts; their defaults if not given.
        clock: by which agents are watched; the machine's if not given.
    """
    settings = settings or Settings()
    writer = FactWriter(ledger, source=SOURCE, origin=f"scheduler/{secrets.token_hex(8)}")
    watch = Watch(ledger, writer, timeout=settings.agent_timeout, clock=clock or Monotonic())
    async with asyncio.TaskGroup() as group:
        group.create_task(host(ledger, Scheduler(), snapshot_every=settings.snapshot_every))
        group.create_task(
            forward(
                ledger,
                name="scheduler-intake",
                topic=topic.SEARCHES,
                source=SOURCE,
                translate=intake,
            )
        )
        group.create_task(supervise(watch.run, name="scheduler-watch"))


async def intake(event: Event) -> Sequence[Payload]:
    """Turn what the searcher decided about runs into facts about allocations."""
    match event.data:
        case RunRequested() as run:
            return [
                AllocationRequested(
                    pool=run.pool,
                    allocation_id=allocation_id_of(run.spec.trial_id, run.spec.run),
                    experiment_id=run.experiment_id,
                    slots=run.slots,
                    priority=run.priority,
                    max_slots=run.max_slots,
                    spec=run.spec,
                )
            ]
        case RunWithdrawn() as run:
            return [
                AllocationWithdrawn(
                    pool=run.pool,
                    allocation_id=allocation_id_of(run.trial_id, run.run),
                    how=run.how,
                )
            ]
        case _:
            return []
