"""The searcher's components: its processor, and a relay of what the scheduler decided."""

from collections.abc import Sequence
from typing import Final

from rung.events import Payload
from rung.events import topic as topics
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.trial import RunEnded
from rung.runtime.relay import Relay
from rung.runtime.service import Component, Decider, Service
from rung.searcher.metrics import Restarts
from rung.searcher.processor import Searcher
from rung.searcher.settings import Settings

NAME: Final = "searcher"
SOURCE: Final = "/rung/searcher"


def components(settings: Settings | None = None) -> tuple[Component, ...]:
    """Return what runs the searches of a ledger.

    Args:
        settings: their defaults if not given.
    """
    settings = settings or Settings()
    return (Decider(Searcher(), settings.snapshot_every, Restarts()), RELAY)


def ended(event: AllocationLost | AllocationDropped) -> Sequence[Payload]:
    """Return the end of a run that its agent will not report."""
    return [
        RunEnded(
            experiment_id=event.experiment_id,
            trial_id=event.trial_id,
            run=event.run,
            outcome="lost" if isinstance(event, AllocationLost) else "dropped",
            reason=event.reason,
        )
    ]


RELAY: Final = Relay(
    "searcher-intake",
    topics.PLACEMENTS,
    SOURCE,
    AllocationLost | AllocationDropped,
    ended,
    appends=(topics.EXPERIMENTS,),
)
SERVICE: Final = Service(NAME, lambda _: components())
