"""One process of Rung: a service's replica or an agent, as `rung service NAME` starts it."""

import contextlib
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from servers.process import ServerFailed, ServerProcess, free_port

_READY_S: Final = 90.0
_COMMAND_S: Final = 120.0
_PROBE_S: Final = 5.0


class Service(ServerProcess):
    """One replica; started again, it is the same one."""

    def __init__(
        self,
        name: str,
        options: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        prefix: Sequence[str] = (),
    ) -> None:
        """Prepare it; nothing is started yet.

        Args:
            name: of the service: `searcher`, …, `agent`.
            options: of its command line.
            log: where its log goes.
            environment: variables besides this process's.
            prefix: command that runs it, such as `ip netns exec NAME`; its probe is not reachable
                then.
        """
        self.name: Final = name
        self._probe: Final = f"127.0.0.1:{free_port()}"
        self._apart: Final = bool(prefix)
        self._unready = ""
        """The reason of the last probe that was not ready."""
        command = [sys.executable, "-m", "rung.cli", "service", name, *options]
        super().__init__(
            [*command, "--probe", self._probe], log=log, environment=environment, prefix=prefix
        )

    @property
    def ready(self) -> bool:
        """Whether its probe is ready."""
        try:
            self._get("/readyz")
        except urllib.error.HTTPError as refused:
            self._unready = refused.read().decode()
        except OSError as error:
            self._unready = f"no answer: {error}"
        else:
            return True
        return False

    def ask(self, path: str) -> str | None:
        """Return the answer of its probe to a path, None if there is none or it is an error."""
        with contextlib.suppress(OSError):
            return self._get(path)
        return None

    def until_ready(self) -> None:
        """Wait until it is ready.

        Raises:
            ServerFailed: it ended, or was not in time; the message has the reason.
        """
        if self._apart:
            return
        try:
            self.wait_until(lambda: self.ready, within_s=_READY_S)
        except ServerFailed as failure:
            raise ServerFailed(f"{failure}\nIt was not ready: {self._unready}") from failure

    def _get(self, path: str) -> str:
        url = f"http://{self._probe}{path}"
        with urllib.request.urlopen(url, timeout=_PROBE_S) as answer:
            body: bytes = answer.read()
            return body.decode()


def run_rung(arguments: Sequence[str], environment: Mapping[str, str], cwd: Path) -> str:
    """Run a command of `rung` and return what it printed.

    Raises:
        ServerFailed: it failed, or took too long.
    """
    command = [sys.executable, "-m", "rung.cli", *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=cwd,
            env=os.environ | dict(environment),
            timeout=_COMMAND_S,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise ServerFailed(f"rung {' '.join(arguments)} took over {_COMMAND_S:.0f} s") from late
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise ServerFailed(f"rung {' '.join(arguments)}: {said}")
    return done.stdout
