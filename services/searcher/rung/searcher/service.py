"""The searcher's components: its processor, and a relay of what the scheduler decided."""

from typing import Final

from rung.events import topic as topics
from rung.events.allocation import AllocationDropped, AllocationLost
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


RELAY: Final = Relay(
    "searcher-intake",
    topics.PLACEMENTS,
    SOURCE,
    AllocationLost | AllocationDropped,
    appends=(topics.EXPERIMENTS,),
)
"""The ends of runs that no agent reports."""
SERVICE: Final = Service(NAME, lambda _: components())
