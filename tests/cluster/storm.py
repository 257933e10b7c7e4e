"""Faults for a cluster, a hundred and more, in an order that a seed repeats."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from servers.cluster import LocalCluster
from servers.kafka import KafkaBroker

CUT_S: Final = 60.0
"""How long an agent is off the network."""
BROKER_PAUSED_S: Final = 30.0
REPLICA_PAUSED_S: Final = 15.0
"""Longer than it takes a silent replica to lose its partitions."""


class _Mortal(Protocol):
    def kill(self) -> None: ...

    def start(self) -> object: ...


class Storm:
    """Breaks parts of a cluster, several at a time, and mends them.

    What takes long goes on in threads of its own while others come and go; a part is never hit
    by two faults at a time, and no more than one broker is away at once, because three brokers
    are made to survive the loss of one.
    """

    def __init__(self, cluster: LocalCluster, brokers: Sequence[KafkaBroker], seed: int) -> None:
        self.count: Final[Counter[str]] = Counter()
        self._cluster = cluster
        self._brokers = brokers
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._held: dict[object, threading.Lock] = {}
        self._kafka = threading.Lock()
        self._threads = ThreadPoolExecutor(8)
        self._running: list[Future[None]] = []

    def rage(self, faults: int, *, pause_s: float) -> None:
        """Inflict so many faults, and wait until the last is mended.

        Args:
            faults: how many.
            pause_s: on average between the beginnings of two.
        """
        plan = self._plan(faults)
        with self._threads:
            for fault in plan:
                self._running.append(self._threads.submit(fault))
                time.sleep(self._chance.uniform(0, 2 * pause_s))  # faults come when they come
            for running in self._running:
                running.result()

    def _plan(self, faults: int) -> list[Callable[[], None]]:
        """Return the long faults, early enough to be over with the rest, among the short."""
        long = [self._cut_agent, self._pause_broker, self._pause_replica] * 2
        long += [self._pause_replica] * max(0, faults // 20 - 2)
        short = [self._kill_replica] * 5 + [self._kill_broker, self._kill_agent]
        short += [self._kill_clickhouse, self._kill_objects]
        plan = [self._chance.choice(short) for _ in range(faults - len(long))]
        # Each kind at least once, whatever the dice say.
        plan[: len(short)] = short
        self._chance.shuffle(plan)
        for fault in long:
            plan.insert(self._chance.randrange(len(plan) // 2), fault)
        return plan

    def _kill_replica(self) -> None:
        service = self._chance.choice(self._cluster.services)
        self._kill(service, service.name)

    def _kill_agent(self) -> None:
        self._kill(self._chance.choice(self._cluster.agents), "agent")

    def _kill_clickhouse(self) -> None:
        self._kill(self._cluster.clickhouse, "clickhouse")

    def _kill_objects(self) -> None:
        self._kill(self._cluster.objects, "objects")

    def _kill_broker(self) -> None:
        broker = self._chance.choice(self._brokers)
        with self._kafka:
            self._kill(broker, "broker")
            broker.await_brokers(len(self._brokers))

    def _kill(self, part: _Mortal, name: str) -> None:
        with self._alone(part):
            self.count[f"kill {name}"] += 1
            part.kill()
            part.start()

    def _pause_broker(self) -> None:
        broker = self._chance.choice(self._brokers)
        with self._kafka, self._alone(broker):
            self.count["pause broker"] += 1
            broker.pause()
            time.sleep(BROKER_PAUSED_S)
            broker.resume()
            broker.await_brokers(len(self._brokers))

    def _pause_replica(self) -> None:
        services = [s for s in self._cluster.services if s.name != "gateway"]
        service = self._chance.choice(services)
        with self._alone(service):
            self.count[f"pause {service.name}"] += 1
            service.pause()
            time.sleep(REPLICA_PAUSED_S)
            service.resume()

    def _cut_agent(self) -> None:
        agent = self._chance.choice(self._cluster.agents)
        with self._alone(agent):
            self.count["cut agent"] += 1
            self._cluster.cut(agent)
            time.sleep(CUT_S)
            self._cluster.mend(agent)

    def _alone(self, part: object) -> threading.Lock:
        return self._held.setdefault(part, threading.Lock())
