"""What each component of this version does with the topics of a ledger.

A processor's topics, and what a service follows, are read from its table of components. What a
relay, a sink or work of its own appends is not in these tables and stands here.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rung.checkpoint_gc.processor import CheckpointGC
from rung.checkpoint_gc.service import DELETER
from rung.checkpoint_gc.service import NAME as CHECKPOINT_GC
from rung.checkpoint_gc.service import RELAY as CHECKPOINT_GC_RELAY
from rung.events import TOPICS, topic
from rung.ledger.kafka.access import Access, Rule, rules
from rung.ledger.kafka.settings import Address
from rung.metrics.service import NAME as METRICS
from rung.metrics.service import TOPICS as METRICS_TOPICS
from rung.runtime.relay import Relay
from rung.runtime.service import Component, Decider, topics_of
from rung.runtime.sink import Sink
from rung.scheduler import service as scheduler
from rung.searcher import service as searcher

COMPONENT: Final = "{component}"
"""What a pattern of principals has in place of the component's name."""


def _shared(service: str, components: Iterable[Component]) -> Access:
    """Return the access that follows from a service's table."""
    found = Access(
        reads=frozenset(topics_of(components)) | {topic.DEADLETTER},
        appends=frozenset({topic.DEADLETTER}),
        groups=frozenset({f"replicas.{service}"}),
    )
    for it in components:
        match it:
            case Decider(processor):
                decisions = frozenset({processor.decisions})
                found |= Access(reads=decisions, appends=decisions)
            case Relay() | Sink():
                found |= Access(groups=frozenset({it.name}))
            case _:
                pass
    return found


_OPENED: Final = Access(reads=frozenset({topic.IMPORTS}))
"""Each service starts only where no import is unfinished."""
_RECORD: Final = Access(reads=frozenset(TOPICS) - {topic.HEARTBEATS})
"""All that is kept."""

COMPONENTS: Final[Mapping[str, Access]] = {
    searcher.NAME: _OPENED
    | _shared(searcher.NAME, searcher.components())
    | Access(appends=frozenset({topic.EXPERIMENTS})),  # its relay: ends of runs
    scheduler.NAME: _OPENED
    | _shared(scheduler.NAME, scheduler.components())
    | Access(  # its relay: requests; its failure detector: agents that are lost
        reads=frozenset({topic.HEARTBEATS}), appends=frozenset({topic.POOLS})
    ),
    CHECKPOINT_GC: _RECORD  # it archives and seals the ledger
    | _shared(CHECKPOINT_GC, (Decider(CheckpointGC()), CHECKPOINT_GC_RELAY))
    | Access(appends=frozenset({topic.EXPERIMENTS, topic.SEALS}), groups=frozenset({DELETER})),
    METRICS: _OPENED
    | Access(
        reads=frozenset({*METRICS_TOPICS, topic.SEALS}),
        appends=frozenset({topic.DEADLETTER}),
        trims=frozenset({topic.LOGS}),
        groups=frozenset({f"replicas.{METRICS}"}),
    ),
    "gateway": _RECORD  # it shows, audits and verifies
    | Access(
        # Commands about experiments, pools, lines to delete, and messages that are rejected.
        appends=frozenset({topic.EXPERIMENTS, topic.POOLS, topic.LOGS, topic.DEADLETTER})
    ),
    "agent": _OPENED
    | Access(
        reads=frozenset({topic.PLACEMENTS, topic.POOLS}),
        appends=frozenset(
            {topic.EXPERIMENTS, topic.POOLS, topic.METRICS, topic.LOGS, topic.HEARTBEATS}
        ),
    ),
}


def rules_of(address: Address, principals: str) -> dict[str, list[Rule]]:
    """Return the rules by component.

    Args:
        address: of the ledger.
        principals: of components, such as `User:rung-{component}`.
    """
    return {
        name: rules(address, principals.replace(COMPONENT, name), access)
        for name, access in COMPONENTS.items()
    }
