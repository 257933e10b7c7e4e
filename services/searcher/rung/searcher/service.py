"""The searcher's components: its processor, and relays of what it and the scheduler decided."""

from typing import Final

from rung.events import topic as topics
from rung.events.allocation import AllocationDropped, AllocationLost
from rung.events.experiment import SearchContinued, SearchDeferred
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
    return (Decider(Searcher(), settings.snapshot_every, Restarts()), RELAY, CONTINUATION)


RELAY: Final = Relay(
    "searcher-intake",
    topics.PLACEMENTS,
    SOURCE,
    AllocationLost | AllocationDropped,
    appends=(topics.EXPERIMENTS,),
)
"""The ends of runs that no agent reports."""


def _continued(event: SearchDeferred) -> list[SearchContinued]:
    return [SearchContinued(experiment_id=event.experiment_id)]


CONTINUATION: Final = Relay(
    "searcher-continuation",
    topics.SEARCHES,
    SOURCE,
    SearchDeferred,
    appends=(topics.EXPERIMENTS,),
    translate=_continued,
)
"""The next steps of searches that have more to decide."""
SERVICE: Final = Service(NAME, lambda _: components())
