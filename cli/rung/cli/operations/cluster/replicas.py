"""The replicas of services on a cluster, with their partitions, as consumer groups list them."""

from typing import Final

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.protocol.admin import DescribeGroupsRequest
from msgspec import Struct

from rung.cli.operations.service import SERVICES
from rung.ledger.kafka import KafkaSettings, parse_address
from rung.ledger.kafka.cluster import Cluster, connect
from rung.ledger.kafka.errors import error_of
from rung.metrics.service import NAME as METRICS
from rung.runtime.assignment.settings import level_of_client

SHARED: Final = (*(name for name, it in SERVICES.items() if it.table), METRICS)
"""Services whose replicas share partitions."""


class Replica(Struct, frozen=True, kw_only=True):
    """One process of a service."""

    host: str
    partitions: dict[str, list[int]]
    """By topic, by its name in the ledger."""
    level: int = 1
    """The newest logic level that it knows."""


async def replicas_of(cluster: Cluster, service: str) -> list[Replica]:
    """Return the replicas of a service that share partitions, ordered by host.

    Raises:
        LedgerUnavailable: the cluster does not answer.
    """
    group = cluster.address.topic(f"replicas.{service}")

    async def attempt() -> list[Replica]:
        node = await cluster.coordinator(group)
        answer = await cluster.send(DescribeGroupsRequest([group]), node)
        members = []
        for code, _, _, _, _, of_group, *_ in answer.groups:
            if code:
                raise error_of(code)
            members += [
                _replica(cluster, name, host, held) for _, name, host, _, held, *_ in of_group
            ]
        return sorted(members, key=lambda member: (member.host, sorted(member.partitions.items())))

    return await cluster.persist(attempt, f"asking who is in {group}")


async def running_on(url: str) -> dict[str, list[str]]:
    """Return the services that have replicas on a ledger, with the hosts of these.

    Agents share no partitions, so they are not among them.

    Raises:
        LedgerUnavailable: the cluster does not answer.
    """
    address = parse_address(url)
    cluster = await connect(address, KafkaSettings.from_environment())
    try:
        found = {service: await replicas_of(cluster, service) for service in SHARED}
    finally:
        await cluster.close()
    return {service: [item.host for item in some] for service, some in found.items() if some}


def _replica(cluster: Cluster, client_id: str, host: str, assignment: bytes) -> Replica:
    held: dict[str, list[int]] = {}
    if assignment:
        prefix = cluster.address.topic("")
        for name, partitions in ConsumerProtocolMemberAssignment.decode(assignment).assignment:
            if partitions:
                held[name.removeprefix(prefix)] = sorted(partitions)
    level = level_of_client(client_id)
    return Replica(host=host.removeprefix("/"), partitions=held, level=level)
