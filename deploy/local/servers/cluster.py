"""A cluster of Rung as processes of this machine, for `make cluster` and for tests of faults.

Apache Kafka, a ClickHouse server and SeaweedFS (S3), every service in several replicas, and
agents, each in a network namespace if this machine allows that.
"""

import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rung.agent.forkserver.client import left_behind
from servers.clickhouse import ClickHouse
from servers.kafka import KafkaBroker, KafkaCluster
from servers.network import Network
from servers.process import free_port
from servers.seaweed import Seaweed
from servers.service import Service, run_rung

REPLICAS: Final[Mapping[str, int]] = {
    "searcher": 2,
    "scheduler": 2,
    "checkpoint-gc": 1,
    "metrics": 1,
    "gateway": 1,
}
_LOOPBACK: Final = "127.0.0.1"


class LocalCluster:
    """A cluster in one folder; its data stay between `stop` or `kill` and the next `start`."""

    def __init__(  # noqa: PLR0913 - each has a default
        self,
        folder: Path,
        *,
        broker: KafkaBroker | KafkaCluster | None = None,
        replicas: Mapping[str, int] = REPLICAS,
        agents: int = 2,
        slots: int = 2,
        partitions: int = 8,
        network: Network | None = None,
        options: Mapping[str, tuple[str, ...]] | None = None,
        environment: Mapping[str, str] | None = None,
        logins: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Prepare it; nothing is started yet.

        Args:
            folder: for data and logs; made if need be.
            broker: of the ledger, one or several; one in the cluster's folder if None.
            replicas: of each service.
            agents: how many, named `agent-1` and so on.
            slots: that each agent offers.
            partitions: of each topic.
            network: where agents have namespaces of their own; on the loopback interface if None.
            options: of a service's command line, besides those it has here.
            environment: of every process of Rung, besides what it has here.
            logins: of the processes of a service, or of agents, over that.
        """
        self.folder: Final = folder.resolve()
        self.network: Final = network
        self._host: Final = network.host if network else _LOOPBACK
        self._partitions: Final = partitions
        self._options: Final = dict(options or {})
        self._logins: Final = dict(logins or {})
        self.broker: Final = broker or KafkaBroker(self.folder / "kafka", host=self._host)
        self.clickhouse: Final = ClickHouse(self.folder / "clickhouse")
        self.objects: Final = Seaweed(self.folder / "objects", host=self._host)
        self.token: Final = secrets.token_urlsafe(24)
        self._seal_key: Final = secrets.token_hex(32)
        self._secrets_key: Final = secrets.token_hex(32)
        self._ports: Final = [free_port() for _ in range(replicas.get("gateway", 1))]
        self.environment: Final = {
            **self.objects.environment,
            "RUNG_CLICKHOUSE_PASSWORD": self.clickhouse.password,
            "RUNG_LEDGER": self.broker.url,
            "RUNG_OBJECTS": self.objects.url,
            "RUNG_SERIES": self.clickhouse.url,
            "RUNG_TOKEN": self.token,
            "RUNG_URL": self.urls[0],
            **(environment or {}),
        }
        self.services: Final = [
            self._service(name, number)
            for name, count in replicas.items()
            for number in range(1, count + 1)
        ]
        self.agents: Final = [self._agent(number, slots) for number in range(1, agents + 1)]

    @property
    def urls(self) -> list[str]:
        """Where each gateway answers."""
        return [f"http://{_LOOPBACK}:{port}" for port in self._ports]

    def replicas(self, name: str) -> list[Service]:
        """Return the replicas of a service."""
        return [service for service in self.services if service.name == name]

    def cut(self, agent: Service) -> None:
        """Cut an agent off the network; without a namespace, stop its process instead."""
        if self.network is None:
            agent.pause()
        else:
            self.network.cut(self._name_of(agent))

    def mend(self, agent: Service) -> None:
        """Undo `cut`."""
        if self.network is None:
            agent.resume()
        else:
            self.network.mend(self._name_of(agent))

    def start(self) -> None:
        """Start everything and wait until every process is ready.

        Raises:
            ServerFailed: something does not start; the message ends with the end of its log.
        """
        with ThreadPoolExecutor(3) as threads:
            starts = (self.broker.start, self.clickhouse.start, self.objects.start)
            for started in [threads.submit(start) for start in starts]:
                started.result()
        self.rung("cluster", "init", "--partitions", str(self._partitions))
        self.rung("metrics", "migrate")
        for service in [*self.services, *self.agents]:
            service.start()
        for service in [*self.services, *self.agents]:
            service.until_ready()

    def rung(self, *arguments: str) -> str:
        """Run a command of `rung` with the cluster's settings and return what it printed.

        Raises:
            ServerFailed: it failed.
        """
        return run_rung(arguments, self.environment, self.folder)

    def stop(self) -> None:
        """Shut everything down gracefully: agents, services, servers."""
        for processes in (self.agents, self.services):
            _stop_all(processes)
        self.objects.stop()
        self.clickhouse.stop()
        self.broker.stop()

    def kill(self) -> None:
        """End everything at once (SIGKILL), the trials that would outlive their agents too."""
        for process in (*self.agents, *self.services):
            process.kill()
        for folder in (self.folder / "agents").glob("*"):
            left_behind(folder, kill=True)
        for server in (self.objects, self.clickhouse, self.broker):
            server.kill()

    def _service(self, name: str, number: int) -> Service:
        options = list(self._options.get(name, ()))
        if name == "gateway":
            options += ["--bind", f"{_LOOPBACK}:{self._ports[number - 1]}"]
        keys = {
            "checkpoint-gc": {"RUNG_SEAL_KEY": self._seal_key},
            "gateway": {"RUNG_SECRETS_KEY": self._secrets_key},
        }
        return Service(
            name,
            options,
            log=self.folder / "log" / f"{name}-{number}.log",
            environment={**self.environment, **keys.get(name, {}), **self._logins.get(name, {})},
        )

    def _name_of(self, agent: Service) -> str:
        return f"agent-{self.agents.index(agent) + 1}"

    def _agent(self, number: int, slots: int) -> Service:
        name = f"agent-{number}"
        folder = self.folder / "agents" / name
        options = ["--folder", str(folder), "--agent-id", name, "--slots", str(slots)]
        return Service(
            "agent",
            [*options, *self._options.get("agent", ())],
            log=self.folder / "log" / f"{name}.log",
            environment={
                **self.environment,
                "RUNG_SECRETS_KEY": self._secrets_key,
                **self._logins.get("agent", {}),
            },
            prefix=self.network.join(name) if self.network else (),
        )


def _stop_all(processes: list[Service]) -> None:
    with ThreadPoolExecutor(len(processes) or 1) as threads:
        for stopped in [threads.submit(process.stop) for process in processes if process.running]:
            stopped.result()
