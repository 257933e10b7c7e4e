"""What the S3 servers of the tests have in common, and which of them are there."""

import importlib
from pathlib import Path
from typing import Final, Protocol, Self

SEAWEED: Final = "SeaweedFS"
MINIO: Final = "MinIO"
KINDS: Final = (SEAWEED, MINIO)


class S3Server(Protocol):
    """An S3 server with one pair of keys and one bucket, in a folder of its own."""

    @property
    def endpoint(self) -> str:
        """Where it answers: `http://127.0.0.1:…`."""
        ...

    @property
    def url(self) -> str:
        """Its bucket, for `rung.objects.open_store`; `environment` says where it is."""
        ...

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which Rung finds it and may use it."""
        ...

    def start(self) -> Self:
        """Start it, or start it again, and wait until it takes objects."""
        ...

    def restart(self) -> None:
        """Kill it and start it again, on the same ports and data."""
        ...

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        ...

    def pause(self) -> None:
        """Stop it from running (SIGSTOP); its connections stay open."""
        ...

    def resume(self) -> None:
        """Let it run again (SIGCONT)."""
        ...


def server_of(kind: str, folder: Path) -> S3Server:
    """Return a server of a kind, not started yet."""
    module = importlib.import_module("servers.seaweed" if kind == SEAWEED else "servers.minio")
    made: S3Server = (module.Seaweed if kind == SEAWEED else module.Minio)(folder)
    return made
