"""Access to the topics of a ledger that each service needs, for ACLs of Kafka.

It is derived from the tables of components; access of services without a table is listed here.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from rung.checkpoint_gc.service import NAME as CHECKPOINT_GC
from rung.cli.operations.service import tables
from rung.events import TOPICS, topic
from rung.gateway.service import NAME as GATEWAY
from rung.ledger.kafka.access import Access, Rule, rules
from rung.ledger.kafka.settings import Address
from rung.metrics.service import NAME as METRICS
from rung.metrics.service import components as metrics_components
from rung.metrics.settings import Settings as MetricsSettings
from rung.metrics.store import SeriesStore
from rung.runtime.relay import Relay
from rung.runtime.service import Component, Decider, Shared, Singleton, topics_of
from rung.runtime.sink.sink import Sink
from rung.webhooks.delivery import NAME as DELIVERER
from rung.webhooks.service import NAME as WEBHOOKS

COMPONENT: Final = "{component}"
"""Placeholder of the component's name in a pattern of principals."""


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
                found |= Access(appends=frozenset(it.appends), groups=frozenset({it.name}))
            case Singleton() | Shared():
                found |= Access(reads=frozenset(it.reads), appends=frozenset(it.appends))
            case _:
                pass
    return found


_OPENED: Final = Access(reads=frozenset({topic.IMPORTS}))
"""Each service checks at its start that no import is unfinished."""
_RECORD: Final = Access(reads=frozenset(TOPICS) - {topic.HEARTBEATS})
"""All topics but heartbeats."""
_METRICS: Final = metrics_components(
    SeriesStore(Path(), ledger_id=""), MetricsSettings(logs_total_bytes=1)
)
"""All components of metrics that its settings can enable; the store is not opened."""
_MORE: Final[Mapping[str, Access]] = {
    # It archives and seals the ledger, by its settings.
    CHECKPOINT_GC: _RECORD | Access(appends=frozenset({topic.SEALS})),
    # It trims old lines from the ledger, and reads which were trimmed.
    METRICS: Access(reads=frozenset({topic.SEALS}), trims=frozenset({topic.LOGS})),
    GATEWAY: _RECORD  # for projections, audits and verification
    | Access(
        # Requests about experiments, pools, the directory and deliveries; deletions of lines.
        appends=frozenset(
            {topic.EXPERIMENTS, topic.POOLS, topic.REQUESTS, topic.DELIVERIES, topic.LOGS}
        )
    ),
    # It commits how far deliveries have ended.
    WEBHOOKS: Access(groups=frozenset({DELIVERER})),
}
"""Access of a service outside its table of components."""

COMPONENTS: Final[Mapping[str, Access]] = {
    **{
        name: _OPENED | _shared(name, table) | _MORE.get(name, Access())
        for name, table in {**tables(), METRICS: _METRICS}.items()
    },
    "agent": _OPENED
    | Access(
        reads=frozenset({topic.PLACEMENTS, topic.POOLS, topic.EXPERIMENTS}),
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
