"""The scheduler's components: its processor, the relay of requests, and the failure detector."""

import secrets
from typing import Final

from rung.events import topic
from rung.events.experiment import ResourcesChanged
from rung.events.trial import RunRequested, RunWithdrawn
from rung.ledger import Ledger
from rung.runtime import Assignment, FactWriter
from rung.runtime.relay import Relay
from rung.runtime.retry import supervise
from rung.runtime.service import Component, Decider, Service, Shared
from rung.scheduler.failure_detector import Clock, FailureDetector, Monotonic
from rung.scheduler.metrics import PoolGauge
from rung.scheduler.processor import Scheduler
from rung.scheduler.settings import Settings

NAME: Final = "scheduler"
DETECTOR: Final = "scheduler-watch"
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
    pools = PoolGauge()

    async def detect(ledger: Ledger, _: Assignment) -> None:
        writer = FactWriter(ledger, source=SOURCE, origin=f"scheduler/{secrets.token_hex(8)}")
        detector = FailureDetector(
            ledger,
            writer,
            pools.states,
            timeout=settings.agent_timeout,
            clock=clock or Monotonic(),
        )
        await supervise(detector.run, name=DETECTOR, follows=False)

    return (
        Decider(Scheduler(), settings.snapshot_every, pools),
        RELAY,
        Shared(
            DETECTOR,
            (topic.POOLS,),
            detect,
            reads=(topic.HEARTBEATS,),
            appends=(topic.POOLS,),
        ),
    )


RELAY: Final = Relay(
    "scheduler-intake",
    topic.SEARCHES,
    SOURCE,
    RunRequested | RunWithdrawn | ResourcesChanged,
    appends=(topic.POOLS,),
)
"""What the searcher wants of the pools."""
SERVICE: Final = Service(NAME, lambda _: components())
