"""The Rung that `rung.tune` uses: one that runs, or one that it starts for this process.

One that it started ends with the process, whatever ends that: it holds the reading end of a pipe
whose writing end is this process's. While the process lives, it is started again if it dies.
"""

import atexit
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Final

import click

from rung.cli.local.data_folder import (
    DataFolderError,
    default_path,
    holder_of,
    is_running,
    read_server,
)
from rung.cli.local.up import UpOptions, start_detached
from rung.client import Client
from rung.events import RungError

PATIENCE_S: Final = 60.0
"""How long a client retries: it outlasts a restart of the server."""
_LOCAL_PATIENCE_S: Final = 5.0
"""The same on this machine, where a lock tells whether a server starts or has ended."""
_STOP_S_MAX: Final = 60.0
_LOOK_S: Final = 0.05


class Installation:
    """The Rung that the environment names; on this machine one that runs, or is started."""

    def __init__(self) -> None:
        self._path = default_path().absolute()
        self._pipe: tuple[int, int] | None = None
        """Its reading and writing end, once a `rung up` was started."""
        self._port = 0
        self._pid: int | None = None
        """Of the `rung up` that this process started last."""

    @property
    def is_here(self) -> bool:
        """Whether it is of this machine, so that it can be started."""
        return not os.environ.get("RUNG_URL")

    def client(self) -> Client:
        """Return a client of it; start it first if it is of this machine and does not run.

        Raises:
            RungError: it cannot be started.
        """
        if not self.is_here:
            return Client(patience_s=PATIENCE_S)
        self.ensure()
        return Client(data=self._path, patience_s=_LOCAL_PATIENCE_S)

    def ensure(self) -> None:
        """Start Rung on the data folder unless it runs; wait for one that starts or stops.

        Raises:
            RungError: it cannot be started.
        """
        while True:
            while is_running(self._path):
                with contextlib.suppress(DataFolderError):
                    if read_server(self._path).ready:
                        return
                time.sleep(_LOOK_S)
            try:
                self._start()
            except RungError:
                if not is_running(self._path):  # another process was faster
                    raise

    def _start(self) -> None:
        again = self._pid is not None
        if self._pipe is None:
            self._pipe = os.pipe()
            os.register_at_fork(after_in_child=self._forget)
            atexit.register(self._stop)
        options = UpOptions(port=self._port, keep_token=again, unattended=0)
        server = start_detached(self._path, options, parent=self._pipe[0])
        self._port, self._pid = int(server.url.rpartition(":")[2]), server.pid
        for warning in server.warnings:
            _say(f"warning: {warning}")
        where = f"{server.url}/#token={server.token}"
        _say(f"started Rung on {self._path} for this process; its page: {where}")
        if not again:
            _say("it stops with this process; one that `rung up` started is used, and stays")

    def _forget(self) -> None:
        """Close, in a forked child, what would keep `rung up` running."""
        if self._pipe is not None:
            for end in self._pipe:
                with contextlib.suppress(OSError):
                    os.close(end)
            self._pipe = None
            atexit.unregister(self._stop)

    def _stop(self) -> None:
        """Stop it with this process, and wait until the data folder is free."""
        if self._pipe is None:
            return
        os.close(self._pipe[1])
        os.close(self._pipe[0])
        self._pipe = None
        deadline = time.monotonic() + _STOP_S_MAX
        while holder_of(self._path) == self._pid is not None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


_installations: dict[Path, Installation] = {}


def installation() -> Installation:
    """Return the installation of the data folder that is set now."""
    return _installations.setdefault(default_path().absolute(), Installation())


def _say(text: str) -> None:
    click.echo(f"rung: {text}", err=True, file=sys.stderr)
