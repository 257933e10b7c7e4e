"""Positions of consumers, kept by the cluster as the committed offsets of groups.

A consumer is a group without members, so that Kafka's own tools show its lag; such a group must
not be used by anybody who joins it.
"""

from typing import Any, Final

from aiokafka import errors
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import failed

_FOR_EVER_MS: Final = 100 * 365 * 24 * 3600 * 1000
"""Kafka would forget a position a week after its last commit, however long nothing came."""
_GROUP: Final = 0
_NO_GENERATION: Final = -1


class Groups:
    """Reads and writes committed offsets."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators: dict[str, int] = {}

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the position a consumer committed last, 0 if it never did."""
        group, name = self._names(consumer, topic)

        async def attempt() -> int:
            answer = await self._send(group, OffsetFetchRequest(group, [(name, [partition])]))
            self._check(group, getattr(answer, "error_code", 0))
            for _, partitions in answer.topics:
                for _, position, _, code in partitions:
                    self._check(group, code)
                    return max(int(position), 0)
            return 0

        return await self._cluster.persist(attempt, f"asking where {group} is in {name}")

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Remember where a consumer goes on after a restart."""
        group, name = self._names(consumer, topic)
        request = OffsetCommitRequest(
            group, _NO_GENERATION, "", _FOR_EVER_MS, [(name, [(partition, position, "")])]
        )

        async def attempt() -> None:
            answer = await self._send(group, request)
            for _, partitions in answer.topics:
                for _, code in partitions:
                    self._check(group, code)

        await self._cluster.persist(attempt, f"committing where {group} is in {name}")

    def _names(self, consumer: str, topic: str) -> tuple[str, str]:
        return self._cluster.address.topic(consumer), self._cluster.address.topic(topic)

    async def _send(self, group: str, request: Any) -> Any:
        node = self._coordinators.get(group)
        if node is None or node not in self._cluster.metadata.brokers:
            node = self._coordinators[group] = await self._find(group)
        try:
            return await self._cluster.send(node, request, "calls")
        except Exception:
            self._coordinators.pop(group, None)
            raise

    async def _find(self, group: str) -> int:
        last: Exception = errors.NodeNotReadyError("no broker is known")
        for node in self._cluster.metadata.brokers:
            try:
                answer = await self._cluster.send(
                    node, FindCoordinatorRequest(group, _GROUP), "calls"
                )
            except (errors.KafkaError, OSError) as error:
                last = error
                continue
            if answer.error_code:
                raise failed(answer.error_code)
            return int(answer.coordinator_id)
        raise last

    def _check(self, group: str, code: int) -> None:
        if code:
            self._coordinators.pop(group, None)
            raise failed(code)
