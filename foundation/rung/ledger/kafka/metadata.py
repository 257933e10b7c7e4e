"""What a cluster says about its brokers and some topics."""

import asyncio
from typing import Any, Final

from aiokafka import errors

from rung.events.errors import LedgerDamaged
from rung.ledger.kafka.errors import failed, passes
from rung.ledger.kafka.settings import Address, Server

_GONE_S: Final = 3.0
_GONE_ANSWERS: Final = 3
_NO_LEADER: Final = -1
_UNKNOWN_TOPIC: Final = 3


class Metadata:
    """Who leads which partition, as of the newest answer."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.brokers: dict[int, Server] = {}
        """Those that take requests, by node id."""
        self._leaders: dict[tuple[str, int], int] = {}
        self._replicas: dict[tuple[str, int], list[int]] = {}
        self._missing: dict[str, tuple[float, int]] = {}

    def partitions(self, name: str) -> int:
        """Return how many partitions a topic has, 0 if there is no such topic."""
        return sum(topic == name for topic, _ in self._leaders)

    def replicas(self, name: str) -> list[int]:
        """Return how many brokers hold each partition of a topic."""
        return [len(held) for (topic, _), held in sorted(self._replicas.items()) if topic == name]

    def leader(self, name: str, partition: int) -> int:
        """Return the node that leads a partition.

        Raises:
            LeaderNotAvailableError: none does at the moment.
            LedgerDamaged: the topic is gone: brokers agree on that for a while.
        """
        since, answers = self._missing.get(name, (0.0, 0))
        waited_s = asyncio.get_running_loop().time() - since
        if answers >= _GONE_ANSWERS and waited_s > _GONE_S:
            raise LedgerDamaged(
                f"the topic {name} is not on {self._address} any more: it was deleted, or the "
                "cluster lost it. Restore it, or begin a new ledger under another prefix"
            )
        node = self._leaders.get((name, partition), _NO_LEADER)
        if node not in self.brokers:
            raise errors.LeaderNotAvailableError(f"{name}/{partition}")
        return node

    def learn(self, answer: Any) -> None:
        """Take in what a broker answered.

        Raises:
            KafkaError: it does not say anything about a topic, for good.
        """
        now = asyncio.get_running_loop().time()
        self.brokers = {node: Server(host, port) for node, host, port, _ in answer.brokers}
        self._leaders = {}
        self._replicas = {}
        for code, name, _, partitions in answer.topics:
            if code == _UNKNOWN_TOPIC:
                since, answers = self._missing.get(name, (now, 0))
                self._missing[name] = (since, answers + 1)
                continue
            self._missing.pop(name, None)
            if code and not passes(error := failed(code)):
                raise error
            for _, partition, leader, replicas, *_ in partitions:
                self._leaders[name, partition] = leader
                self._replicas[name, partition] = replicas
