"""What the servers of a local Kafka cluster are told: where each is, and to stay small."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from servers.process import free_port

MAIN: Final = "INTERNAL"
"""The name of the listener without encryption or authentication."""

_CONTROLLER: Final = "CONTROLLER"
_SMALL: Final = {
    "auto.create.topics.enable": "false",
    "background.threads": "2",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "5000",
    "controller.socket.timeout.ms": "5000",
    "group.coordinator.threads": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.index.size.max.bytes": "262144",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.num.partitions": "4",
    "replica.lag.time.max.ms": "5000",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.threads": "1",
    "transaction.state.log.num.partitions": "2",
}


class Node(NamedTuple):
    """Where a broker of a cluster is."""

    number: int
    port: int
    controller_port: int


class Place(NamedTuple):
    """What a broker must know of its cluster: itself, all of them, and the cluster's id."""

    node: Node
    nodes: Sequence[Node]
    cluster: str


def places(count: int) -> list[Place]:
    """Return the places of a new cluster."""
    nodes = [Node(number, free_port(), free_port()) for number in range(1, count + 1)]
    cluster = _cluster_id()
    return [Place(node, nodes, cluster) for node in nodes]


def properties(place: Place, host: str, open_at: Mapping[str, int]) -> dict[str, str]:
    """Return the properties of a server.

    Args:
        place: in its cluster.
        host: where it listens.
        open_at: the port of each listener for clients, by the listener's name.
    """
    copies = str(min(len(place.nodes), 3))
    in_sync = "2" if len(place.nodes) > 2 else "1"
    listeners = [f"{name}://{host}:{port}" for name, port in open_at.items()]
    voters = [f"{node.number}@{host}:{node.controller_port}" for node in place.nodes]
    controller = f"{_CONTROLLER}://{host}:{place.node.controller_port}"
    return {
        **_SMALL,
        "process.roles": "broker,controller",
        "node.id": str(place.node.number),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": _CONTROLLER,
        "listeners": ",".join([*listeners, controller]),
        "advertised.listeners": ",".join(listeners),
        "inter.broker.listener.name": MAIN,
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def protocols(listeners: Mapping[str, str]) -> dict[str, str]:
    """Return the property that says which protocol each listener speaks."""
    every = {**listeners, _CONTROLLER: "PLAINTEXT"}
    mapped = [f"{name}:{protocol}" for name, protocol in every.items()]
    return {"listener.security.protocol.map": ",".join(mapped)}


def _cluster_id() -> str:
    """Return sixteen random bytes as Kafka writes them; never an option by its first letter."""
    while True:
        drawn = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not drawn.startswith("-"):
            return drawn
