"""The topics of the ledger, and how a key finds its partition."""

import zlib
from typing import Final, Literal, NamedTuple

Holds = Literal["facts", "decisions", "stream"]


class Topic(NamedTuple):
    """One topic: its name, the field that is its key, and what it holds."""

    name: str
    key: str
    holds: Holds


class Relayed(NamedTuple):
    """Where decisions of a type are relayed to: as facts of that type, under another key."""

    topic: str
    by: str
    """The service whose relay writes them."""


EXPERIMENTS: Final = "experiments"
SEARCHES: Final = "searches"
RETIREMENTS: Final = "retirements"
POOLS: Final = "pools"
PLACEMENTS: Final = "placements"
REQUESTS: Final = "requests"
DIRECTORY: Final = "directory"
DELIVERIES: Final = "deliveries"
METRICS: Final = "metrics"
LOGS: Final = "logs"
HEARTBEATS: Final = "heartbeats"
DEADLETTER: Final = "deadletter"
IMPORTS: Final = "imports"
SEALS: Final = "seals"
ANY_DECISIONS: Final = "any topic of decisions"
"""In place of a topic, of types that lie on each of them; an event of theirs names its topic."""
ANY_FACTS: Final = "any topic of facts"

TOPICS: Final[dict[str, Topic]] = {
    topic.name: topic
    for topic in (
        Topic(EXPERIMENTS, "experiment_id", "facts"),
        Topic(SEARCHES, "experiment_id", "decisions"),
        Topic(RETIREMENTS, "experiment_id", "decisions"),
        Topic(POOLS, "pool", "facts"),
        Topic(PLACEMENTS, "pool", "decisions"),
        Topic(REQUESTS, "directory", "facts"),
        Topic(DIRECTORY, "directory", "decisions"),
        Topic(DELIVERIES, "webhook_id", "stream"),
        Topic(METRICS, "trial_id", "stream"),
        Topic(LOGS, "trial_id", "stream"),
        Topic(HEARTBEATS, "agent_id", "stream"),
        Topic(DEADLETTER, "topic", "stream"),
        Topic(IMPORTS, "ledger_id", "stream"),
        Topic(SEALS, "place", "stream"),
    )
}

DECISIONS: Final[dict[str, tuple[str, ...]]] = {
    EXPERIMENTS: (SEARCHES, RETIREMENTS),
    POOLS: (PLACEMENTS,),
    REQUESTS: (DIRECTORY,),
}
"""Each topic of facts with the topics of decisions on them."""
FACTS_OF: Final = {name: facts for facts, names in DECISIONS.items() for name in names}


def topics_of(name: str) -> tuple[str, ...]:
    """Return the topics that a type's `TOPIC` stands for."""
    return {ANY_DECISIONS: tuple(FACTS_OF), ANY_FACTS: tuple(DECISIONS)}.get(name, (name,))


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key: the same on every machine and for ever.

    CRC-32 rather than `hash()`, which differs between processes. Topics that share a key also
    share their number of partitions, so a key's facts and decisions lie on equal numbers.
    """
    return zlib.crc32(key.encode()) % partitions
