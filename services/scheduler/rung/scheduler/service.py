"""The scheduler's components: its processor, the relay of requests, and the failure detector."""

import secrets
from collections.abc import Sequence
from typing import Final

from rung.events import Payload, topic
from rung.events.allocation import AllocationRequested, AllocationWithdrawn
from rung.events.trial import RunRequested, RunWithdrawn, allocation_id_of
from rung.ledger import Ledger
from rung.runtime import FactWriter
from rung.runtime.relay import Relay
from rung.runtime.service import Component, Decider, Service, Singleton
from rung.scheduler.failure_detector import Clock, FailureDetector, Monotonic
from rung.scheduler.metrics import PoolGauge
from rung.scheduler.processor import Scheduler
from rung.scheduler.settings import Settings

NAME: Final = "scheduler"
SOURCE: Final = "/rung/scheduler"


def components(
    settings: Settings | None = None, *, clock: Clock | None = None
) -> tuple[Component, ...]:
    """Return what schedules the pools of a ledger.

    Args:
        settings: timeouts; their defaults if not given.
        clock: the failure detector's; the machine's if not given.
    """
    settings = settings or Settings()

    async def detect(ledger: Ledger) -> None:
        writer = FactWriter(ledger, source=SOURCE, origin=f"scheduler/{secrets.token_hex(8)}")
        detector = FailureDetector(
            ledger, writer, timeout=settings.agent_timeout, clock=clock or Monotonic()
        )
        await detector.run()

    return (
        Decider(Scheduler(), settings.snapshot_every, PoolGauge()),
        RELAY,
        Singleton(
            "scheduler-watch",
            topic.POOLS,
            detect,
            reads=(topic.HEARTBEATS,),
            appends=(topic.POOLS,),
        ),
    )


def requested(event: RunRequested | RunWithdrawn) -> Sequence[Payload]:
    """Turn what the searcher decided about runs into facts about allocations."""
    match event:
        case RunRequested():
            return [
                AllocationRequested(
                    pool=event.pool,
                    allocation_id=allocation_id_of(event.spec.trial_id, event.spec.run),
                    experiment_id=event.experiment_id,
                    slots=event.slots,
                    priority=event.priority,
                    max_slots=event.max_slots,
                    spec=event.spec,
                    submission=event.submission,
                )
            ]
        case RunWithdrawn():
            return [
                AllocationWithdrawn(
                    pool=event.pool,
                    allocation_id=allocation_id_of(event.trial_id, event.run),
                    how=event.how,
                )
            ]


RELAY: Final = Relay(
    "scheduler-intake",
    topic.SEARCHES,
    SOURCE,
    RunRequested | RunWithdrawn,
    requested,
    appends=(topic.POOLS,),
)
SERVICE: Final = Service(NAME, lambda _: components())
