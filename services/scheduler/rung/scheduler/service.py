"""The scheduler's shell: hosts the decider, brings it requests and watches the agents."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

from rung.events import Event, Payload, topic
from rung.events.allocation import AllocationRequested, AllocationWithdrawn
from rung.events.trial import RunRequested, RunWithdrawn, allocation_id_of
from rung.ledger import Ledger
from rung.runtime import FactWriter, Share, Whole, forward, host
from rung.runtime.retry import supervise
from rung.scheduler.metrics import PoolGauge
from rung.scheduler.processor import Scheduler
from rung.scheduler.settings import Settings
from rung.scheduler.watch import Clock, Monotonic, Watch

NAME: Final = "scheduler"
TOPICS: Final = (topic.POOLS, topic.SEARCHES)
"""Those whose partitions replicas share."""
SOURCE: Final = "/rung/scheduler"
_WATCHED_BY: Final = 0
"""Whoever has this partition of `pools` watches all agents."""


async def serve(
    ledger: Ledger,
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    share: Share | None = None,
) -> None:
    """Schedule all pools of a ledger until cancelled.

    Args:
        ledger: where requests come from and grants go.
        settings: timeouts; their defaults if not given.
        clock: by which agents are watched; the machine's if not given.
        share: says which partitions are this replica's; all are if not given.
    """
    settings = settings or Settings()
    share = share or Whole(ledger)
    writer = FactWriter(ledger, source=SOURCE, origin=f"scheduler/{secrets.token_hex(8)}")

    async def watch(partition: int) -> None:
        if partition == _WATCHED_BY:
            timeout = settings.agent_timeout
            watching = Watch(ledger, writer, timeout=timeout, clock=clock or Monotonic())
            await supervise(watching.run, name="scheduler-watch", follows=False)

    pools = PoolGauge()
    with pools.measured():
        async with asyncio.TaskGroup() as group:
            group.create_task(
                host(
                    ledger,
                    Scheduler(),
                    snapshot_every=settings.snapshot_every,
                    share=share,
                    observer=pools,
                )
            )
            group.create_task(
                forward(
                    ledger,
                    name="scheduler-intake",
                    topic=topic.SEARCHES,
                    source=SOURCE,
                    translate=intake,
                    share=share,
                )
            )
            group.create_task(share.hold(topic.POOLS, watch))


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
