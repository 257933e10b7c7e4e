"""Apache Kafka in KRaft mode on this machine, from the jars that `deploy/kafka/pom.xml` names.

Every broker is a controller, too, so that a cluster is n processes of one kind. Brokers are small
(a heap of 256 MiB, few threads, small indexes) and quick: groups form at once, and a lost broker
is fenced after a few seconds.
"""

import contextlib
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from servers.process import Server, ServerFailed, ServerProcess, free_port

MAIN: Final = "INTERNAL"
"""Name of the listener without encryption or authentication."""

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
JARS: Final = Path(sys.prefix) / "kafka"
"""Where `make` puts them, beside the virtual environment's own folders."""
_READY_S: Final = 180.0
"""On a busy machine a Java process takes a minute to begin."""
_JAVA: Final = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-cp",
    f"{JARS}/*",
)


def missing() -> str | None:
    """Return what this machine lacks for a broker, None if nothing."""
    if shutil.which("java") is None:
        return "no `java` is on the PATH: on Debian, apt-get install default-jre-headless"
    if not list(JARS.glob("kafka_*.jar")):
        return f"there are no jars in {JARS}: `make {JARS.parent.name}/kafka` gets them with Maven"
    return None


def available() -> bool:
    """Whether this machine can run a broker."""
    return missing() is None


class Node(NamedTuple):
    """Number and ports of a broker."""

    number: int
    port: int
    controller_port: int


class Place(NamedTuple):
    """A broker's place in its cluster: itself, all brokers, and the cluster's id."""

    node: Node
    nodes: Sequence[Node]
    cluster: str


class KafkaBroker(Server):
    """One broker: a cluster by itself, or a part of one.

    Its data stay in the folder, through `kill` and `stop`, until `start` again.
    """

    def __init__(  # noqa: PLR0913 - each has a default
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        place: Place | None = None,
    ) -> None:
        """Prepare it; nothing is started yet.

        Args:
            folder: for configuration, data and log; made if need be.
            host: where it listens, and what it tells its clients.
            listeners: further ones, name to protocol (`{"SAFE": "SASL_SSL"}`), each on a port of
                its own; what they need besides is given in `properties`.
            properties: of the server, over those it has here.
            prefix: what it is run by, such as `ip netns exec NAME`.
            place: in a cluster; a cluster of its own if not given.

        Raises:
            ServerFailed: there is no Java, or there are no jars.
        """
        if lacking := missing():
            raise ServerFailed(lacking)
        self._place: Final = place or _places(1)[0]
        self.folder: Final = folder.resolve()
        self.host: Final = host
        self._ports: Final = {name: free_port() for name in listeners or {}}
        self._listeners: Final = dict(listeners or {})
        self._more: Final = dict(properties or {})
        self._prefix: Final = tuple(prefix)
        self._process = ServerProcess(
            [*_JAVA, "kafka.Kafka", str(self._settings)],
            log=self.folder / "kafka.log",
            prefix=prefix,
        )

    @property
    def number(self) -> int:
        """Its node id."""
        return self._place.node.number

    @property
    def port(self) -> int:
        """Where it listens without encryption or authentication."""
        return self._place.node.port

    @property
    def address(self) -> str:
        """Host and port of that."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """What `--ledger` takes."""
        return f"kafka://{self.address}"

    def listener(self, name: str) -> str:
        """Return host and port of one of the further listeners."""
        return f"{self.host}:{self._ports[name]}"

    def start(self) -> None:
        """Start it and wait until it, and all that run of its cluster, take requests.

        Raises:
            ServerFailed: it does not start; the message ends with the last it said.
        """
        self.launch()
        self.await_brokers(1)

    def launch(self) -> None:
        """Start it without waiting until it is ready; its folder is formatted the first time."""
        self._configure()
        self._process.start()

    def await_brokers(self, count: int, *, within_s: float = _READY_S) -> None:
        """Wait until it knows as many brokers that take requests.

        Raises:
            ServerFailed: it ended, or does not within the time.
        """
        deadline = time.monotonic() + within_s
        while brokers_known(self.host, self.port) < count:
            if not self.running or time.monotonic() > deadline:
                how = "is not ready" if self.running else "ended at its start"
                raise ServerFailed(f"broker {self.number} {how}: {self._process.said()}")
            time.sleep(0.05)

    def restart(self) -> None:
        """Stop it in good order and start it again."""
        self.stop()
        self.start()

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        found = _properties_of(self._place, self.host, {MAIN: self.port, **self._ports})
        found |= _protocols({MAIN: "PLAINTEXT", **self._listeners})
        found |= {"log.dirs": str(self._data), **self._more}
        lines = [f"{name}={value}\n" for name, value in found.items()]
        self._settings.write_text("".join(lines))
        if (self._data / "meta.properties").exists():
            return
        tool = [*_JAVA, "kafka.tools.StorageTool", "format", "-t", self._place.cluster]
        formatting = subprocess.run(  # noqa: S603 - our own command
            [*self._prefix, *tool, "-c", str(self._settings)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_READY_S,
            check=False,
        )
        if formatting.returncode:
            said = (formatting.stdout + formatting.stderr).decode(errors="replace")
            raise ServerFailed(f"the folder of broker {self.number} was not formatted: {said}")


class KafkaCluster:
    """Several brokers; with three or more, each record lies on three and is safe on two."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 3,
        host: str = "127.0.0.1",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare them; nothing is started yet.

        Args:
            folder: holds one folder per broker.
            brokers: how many.
            host: where they listen.
            properties: of each server, over those it has here.

        Raises:
            ServerFailed: there is no Java, or there are no jars.
        """
        self.brokers: Final = [
            KafkaBroker(
                folder / f"broker-{place.node.number}",
                host=host,
                properties=properties,
                place=place,
            )
            for place in _places(brokers)
        ]

    @property
    def url(self) -> str:
        """What `--ledger` takes."""
        return "kafka://" + ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Start all and wait until each takes requests and knows the others.

        Raises:
            ServerFailed: one does not start; the message ends with the last it said.
        """
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(KafkaBroker.launch, self.brokers))
        for broker in self.brokers:
            broker.await_brokers(len(self.brokers))

    def kill(self) -> None:
        """End all at once (SIGKILL)."""
        for broker in self.brokers:
            broker.kill()

    def stop(self) -> None:
        """Ask all to end, and wait until they have."""
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(KafkaBroker.stop, self.brokers))


def brokers_known(host: str, port: int) -> int:
    """Ask a broker how many take requests; 0 if it does not answer.

    Speaks Kafka's protocol by hand, a request for the metadata of no topic, so that a local
    cluster needs no client to come up.
    """
    request = struct.pack(">hhihi", 3, 1, 0, -1, 0)
    with (
        contextlib.suppress(OSError, struct.error),
        socket.create_connection((host, port), timeout=2) as link,
        link.makefile("rb") as answer,
    ):
        link.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", answer.read(4))
        (known,) = struct.unpack_from(">i", answer.read(size), 4)
        return int(known)
    return 0


def _places(count: int) -> list[Place]:
    """Return the places of a new cluster."""
    nodes = [Node(number, free_port(), free_port()) for number in range(1, count + 1)]
    cluster = _cluster_id()
    return [Place(node, nodes, cluster) for node in nodes]


def _properties_of(place: Place, host: str, open_at: Mapping[str, int]) -> dict[str, str]:
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


def _protocols(listeners: Mapping[str, str]) -> dict[str, str]:
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
