"""MinIO as one process: the S3 server that the compose file has.

Built from its source by Go, because no package carries it. On one folder it keeps no second copy.

Not handled: TLS, several nodes, a key service.
"""

import base64
import contextlib
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Final, Self

from servers.process import ServerFailed, ServerProcess, free_port
from servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server


class Minio(S3Server):
    """An S3 server with one pair of keys and one bucket, in a folder of its own."""

    def __init__(self, folder: Path, *, bucket: str = "rung") -> None:
        """Prepare it; nothing is started yet.

        Args:
            folder: for its data and its log; existing data are served again.
            bucket: made at the start where it is missing.
        """
        self._folder: Final = folder.absolute()
        self._bucket = bucket
        self._port: Final = free_port()
        command = [_program() or "minio", "server", str(self._folder / "data"), "--quiet"]
        self._process = ServerProcess(
            [*command, "--address", f"127.0.0.1:{self._port}", "--console-address", "127.0.0.1:0"],
            log=self._folder / "minio.log",
            environment={
                "MINIO_ROOT_USER": ACCESS_KEY,
                "MINIO_ROOT_PASSWORD": SECRET_KEY,
                "MINIO_REGION": REGION,
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
                "MINIO_KMS_SECRET_KEY": f"rung:{base64.b64encode(bytes(32)).decode()}",
            },
        )

    @property
    def endpoint(self) -> str:
        """Its address: `http://127.0.0.1:…`."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Start it, with its bucket."""
        if lacking := missing():
            raise ServerFailed(lacking)
        (self._folder / "data" / self._bucket).mkdir(parents=True, exist_ok=True)
        self._process.start(self._ready)
        return self

    def _ready(self) -> bool:
        url = f"{self.endpoint}/minio/health/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):  # noqa: S310 - our own server
            return True
        return False


def missing() -> str | None:
    """Return why there is no MinIO here, None if there is one."""
    return (
        None if _program() else "there is no `minio`: `make soak` builds it, where Go is installed"
    )


def _program() -> str | None:
    beside = Path(sys.executable).parent / "minio"
    return str(beside) if beside.exists() else shutil.which("minio")
