"""Faults for a cluster, a hundred and more, in an order that a seed repeats."""

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Literal, NamedTuple

from servers.clickhouse import ClickHouse
from servers.cluster import LocalCluster
from servers.kafka import KafkaBroker
from servers.seaweed import Seaweed
from servers.service import Service

CUT_S: Final = 60.0
"""How long an agent is off the network."""
BROKER_PAUSED_S: Final = 30.0
REPLICA_PAUSED_S: Final = 15.0
"""Longer than it takes a silent replica to lose its partitions."""
BROKERS_PAUSED: Final = 2

Part = Service | KafkaBroker | ClickHouse | Seaweed


class Fault(NamedTuple):
    """What befalls which part: `kill searcher-2`."""

    kind: Literal["kill", "pause", "cut"]
    part: str

    def __str__(self) -> str:
        return f"{self.kind} {self.part}"


class Storm:
    """Breaks parts of a cluster, several at a time, and mends them.

    What takes long goes on in threads of its own while others come and go; a part is never hit
    by two faults at a time, and no more than one broker is away at once, because three brokers
    are made to survive the loss of one.
    """

    def __init__(self, cluster: LocalCluster, brokers: Sequence[KafkaBroker], seed: int) -> None:
        self.count: Final[Counter[Fault]] = Counter()
        self._cluster = cluster
        self._replicas = {
            f"{service.name}-{1 + cluster.replicas(service.name).index(service)}": service
            for service in cluster.services
        }
        self._brokers = {f"broker-{broker.number}": broker for broker in brokers}
        self._agents = {f"agent-{number}": it for number, it in enumerate(cluster.agents, 1)}
        self._parts: dict[str, Part] = {
            **self._replicas,
            **self._brokers,
            **self._agents,
            "clickhouse": cluster.clickhouse,
            "objects": cluster.objects,
        }
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._held = {part: threading.Lock() for part in self._parts}
        self._kafka = threading.Lock()
        self._threads = ThreadPoolExecutor(8)
        self._running: list[Future[None]] = []

    @property
    def spared(self) -> list[str]:
        """The parts that were never killed."""
        return [part for part in self._parts if not self.count[Fault("kill", part)]]

    def rage(
        self, faults: int, *, pause_s: float, enough: Callable[[], bool] = lambda: True
    ) -> None:
        """Inflict so many faults, and wait until the last is mended.

        Args:
            faults: how many at least.
            pause_s: on average between the beginnings of two.
            enough: whether no more kills are wanted after these.
        """
        plan = self.plan(faults)
        more = itertools.takewhile(lambda _: not enough(), self._kills())
        with self._threads:
            for fault in itertools.chain(plan, more):
                self._running.append(self._threads.submit(self._inflict, fault))
                time.sleep(self._chance.uniform(0, 2 * pause_s))  # faults come when they come
            for running in self._running:
                running.result()

    def await_ready(self) -> None:
        """Wait until all replicas are ready again."""
        for replica in self._replicas.values():
            replica.until_ready()

    def plan(self, faults: int) -> list[Fault]:
        """Return the long faults, early enough to be over with the rest, among the short."""
        long = [Fault("cut", agent) for agent in self._agents]
        paused = self._shuffled(self._brokers)[:BROKERS_PAUSED]
        # A replica of each service, whichever.
        names = {self._replicas[name].name: name for name in self._shuffled(self._replicas)}
        long += [Fault("pause", part) for part in (*paused, *names.values())]
        plan = list(itertools.islice(self._kills(), faults - len(long)))
        self._chance.shuffle(plan)
        for fault in long:
            plan.insert(self._chance.randrange(len(plan) // 2), fault)
        return plan

    def _kills(self) -> Iterator[Fault]:
        """Yield a kill of each part, then for ever those of kinds drawn by lot, each in turn."""
        yield from (Fault("kill", part) for part in self._parts)
        replicas, *others = (
            itertools.cycle(self._shuffled(parts))
            for parts in (self._replicas, self._brokers, self._agents, ["clickhouse"], ["objects"])
        )
        while True:
            yield Fault("kill", next(self._chance.choice([*[replicas] * 5, *others])))

    def _shuffled(self, parts: Iterable[str]) -> list[str]:
        names = list(parts)
        self._chance.shuffle(names)
        return names

    def _inflict(self, fault: Fault) -> None:
        part = self._parts[fault.part]
        broker = part if isinstance(part, KafkaBroker) else None
        with self._kafka if broker else contextlib.nullcontext(), self._held[fault.part]:
            self.count[fault] += 1
            match fault.kind:
                case "kill":
                    part.kill()
                    part.start()
                case "pause":
                    part.pause()
                    time.sleep(BROKER_PAUSED_S if broker else REPLICA_PAUSED_S)
                    part.resume()
                case "cut":
                    self._cut(self._agents[fault.part])
            if broker:
                broker.await_brokers(len(self._brokers))

    def _cut(self, agent: Service) -> None:
        self._cluster.cut(agent)
        time.sleep(CUT_S)
        self._cluster.mend(agent)
