"""Positions of consumers: committed offsets of groups, so that Kafka's own tools show the lag.

Each consumer is a group without members; nothing may join it.
"""

from typing import Any, Final

from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import FAILURES, error_of

_FOR_EVER_MS: Final = 100 * 365 * 24 * 3600 * 1000
"""By default Kafka forgets a position a week after its last commit; the clients of the libraries
cannot ask for more."""
_NO_GENERATION: Final = -1


class Positions:
    """Reads and writes committed offsets."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators: dict[str, int] = {}

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the position a consumer committed last, 0 if it never did."""
        group, name = self._names(consumer, topic)
        request = OffsetFetchRequest(group, [(name, [partition])])

        async def attempt() -> int:
            for _, partitions in (await self._send(group, request)).topics:
                for _, position, _, _ in partitions:
                    return max(int(position), 0)
            return 0

        return await self._cluster.persist(attempt, f"reading the position of {group} in {name}")

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Commit the position at which a consumer resumes."""
        group, name = self._names(consumer, topic)
        request = OffsetCommitRequest(
            group, _NO_GENERATION, "", _FOR_EVER_MS, [(name, [(partition, position, "")])]
        )

        async def attempt() -> None:
            await self._send(group, request)

        await self._cluster.persist(attempt, f"committing the position of {group} in {name}")

    def _names(self, consumer: str, topic: str) -> tuple[str, str]:
        return self._cluster.address.topic(consumer), self._cluster.address.topic(topic)

    async def _send(self, group: str, request: Any) -> Any:
        """Send a request to the group's coordinator and return its answer.

        Raises:
            KafkaError, OSError: there is none, or it holds the code of an error.
        """
        node = self._coordinators.get(group)
        if node is None:
            node = self._coordinators[group] = await self._cluster.coordinator(group)
        try:
            answer = await self._cluster.send(request, node)
            codes = [item[-1] for _, partitions in answer.topics for item in partitions]
            for code in (getattr(answer, "error_code", 0), *codes):
                if code:
                    raise error_of(code)
        except FAILURES:
            self._coordinators.pop(group, None)
            raise
        return answer
