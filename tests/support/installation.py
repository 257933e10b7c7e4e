"""A real installation for tests: `rung up` as a user starts it, watched and killed at will."""

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import psutil

from rung.cli.local.data_folder import is_running, read_server
from support.user import User, wait_for


def modes_below(folder: Path) -> dict[Path, int]:
    """Return the mode of each thing below a folder, in order, also while they come and go."""
    found = (
        Path(parent, name)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
    )
    modes = {}
    for path in sorted(found):
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            modes[path] = path.lstat().st_mode
    return modes


def files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, in order, also while they come and go."""
    return [path for path, mode in modes_below(folder).items() if stat.S_ISREG(mode)]


class Installation(User):
    """One data folder and the `rung up` on it."""

    def __init__(
        self,
        folder: Path,
        slots: int = 2,
        unattended_s: float = 0.0,
        environment: Mapping[str, str] | None = None,
        *,
        cold: bool = True,
    ) -> None:
        """Know an installation.

        Args:
            folder: its data folder.
            slots: of its agent.
            unattended_s: how long trials train on without it; 0: they end with it.
            environment: of its processes, besides what it has here.
            cold: whether no frameworks are imported ahead of its trials. That takes 3 s of
                processor time at each start, and many tests have trials without any.
        """
        own = {"RUNG_DATA": str(folder), "RUNG_UNATTENDED": str(unattended_s)}
        own |= {"RUNG_AGENT_COLD": "1"} if cold else {}
        super().__init__(folder, own | dict(environment or {}))
        self.slots = slots

    @property
    def server(self) -> tuple[str, str]:
        """Its URL and its token."""
        server = read_server(self.folder)
        return server.url, server.token

    def up(self) -> None:
        """Start it."""
        self.rung("up", "--detach", "--port", "0", "--slots", str(self.slots))

    def down(self) -> None:
        """Stop it in good order, if it runs."""
        if is_running(self.folder):
            self.rung("down")

    @property
    def server_process(self) -> psutil.Process:
        """The process of `rung up`."""
        return psutil.Process(read_server(self.folder).pid)

    @property
    def agent(self) -> psutil.Process | None:
        """The agent's process, None while there is none."""
        for child in self.server_process.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it may just be dying
                if "rung.agent" in child.cmdline():
                    return child
        return None

    def trials(self) -> list[psutil.Process]:
        """Return the processes of running trials.

        They are forked by the agent's fork server, or by a sandbox that it forked. Each leads a
        session of its own, unlike a sandbox and a command that an import runs.
        """
        agent = self.agent
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it may be dying
            servers = agent.children() if agent else []
            below = [process for server in servers for process in server.children(recursive=True)]
            return [process for process in below if os.getsid(process.pid) == process.pid]
        return []

    def kill_agent(self) -> None:
        """Kill the agent with SIGKILL; it is started again by itself."""

        def killed() -> bool:
            agent = self.agent
            with contextlib.suppress(psutil.NoSuchProcess):  # it may just be dying
                if agent is not None:
                    agent.kill()
                    return True
            return False

        wait_for(killed, "an agent was killed")

    def kill_server(self) -> None:
        """Kill `rung up` with SIGKILL; the agent and all trials must be gone with it."""
        server = self.server_process
        everything = [server, *server.children(recursive=True)]
        server.kill()
        _, alive = psutil.wait_procs(everything, timeout=60)
        assert not alive, f"left running: {alive}"
        wait_for(lambda: not is_running(self.folder), "the folder's lock is free")
