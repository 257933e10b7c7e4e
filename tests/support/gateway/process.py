"""A gateway as a process of its own, whose log and limits a test sees."""

import contextlib
import os
import resource
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from servers.process import free_port
from support.gateway.client import SECRETS_KEY, TOKEN
from support.user import wait_for


class GatewayProcess(NamedTuple):
    """One that answers."""

    port: int
    probe: int
    log: Path
    process: subprocess.Popen[bytes]

    def status(self, path: str = "/api/v1/status", *, timeout: float = 10.0) -> int:
        """Return the status of a client's own request, on a connection of its own."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 - HTTP
                status: int = answer.status
                return status
        except urllib.error.HTTPError as error:
            return error.code


@contextlib.contextmanager
def gateway_process(
    folder: Path, *options: str, open_files: int | None = None
) -> Iterator[GatewayProcess]:
    """Run a gateway on a new ledger below a folder while the context lasts.

    Args:
        folder: empty.
        options: of its command line.
        open_files: hard and soft limit of the process.
    """

    def limit() -> None:
        if open_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

    port, probe = free_port(), free_port()
    command = [sys.executable, "-m", "rung.gateway", "--ledger", str(folder / "ledger")]
    command += ["--objects", (folder / "objects").as_uri(), "--probe", f"127.0.0.1:{probe}"]
    command += ["--bind", f"127.0.0.1:{port}", *options]
    log = folder / "gateway.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "RUNG_TOKEN": TOKEN, "RUNG_SECRETS_KEY": SECRETS_KEY},
            preexec_fn=limit,  # noqa: PLW1509 - before any thread of the child exists
        )
    found = GatewayProcess(port, probe, log, process)
    try:
        _await_start(found)
        yield found
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_start(found: GatewayProcess) -> None:
    """Return once it answers.

    Raises:
        AssertionError: it ended, or takes too long.
    """

    def answers() -> bool:
        assert found.process.poll() is None, found.log.read_text()
        with contextlib.suppress(OSError):
            return found.status() == 200
        return False

    wait_for(answers, "the gateway answers")
