"""Apache Kafka in KRaft mode on this machine, from the jars that `deploy/kafka/pom.xml` names.

Every broker is a controller too, so that a cluster is n processes of one kind. They are made
small (a heap of a quarter gigabyte, few threads, tiny indexes) and quick: groups form at once,
and a broker that is gone is taken for dead after a few seconds.
"""

import contextlib
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from servers.kafka_properties import MAIN, Place, places, properties, protocols
from servers.process import Server, ServerFailed, ServerProcess, free_port

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
        self._place: Final = place or places(1)[0]
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
        """Start it and wait for nothing but its formatting; the first time only."""
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
        found = properties(self._place, self.host, {MAIN: self.port, **self._ports})
        found |= protocols({MAIN: "PLAINTEXT", **self._listeners})
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
            for place in places(brokers)
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
