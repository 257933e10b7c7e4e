"""A real installation for tests: `rung up` as a user starts it, watched and killed at will."""

import contextlib
from pathlib import Path

import psutil

from e2e.user import User, wait_for
from rung.cli.local.data_folder import is_running, read_server


class Installation(User):
    """One data folder and the `rung up` on it."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        super().__init__(folder, {"RUNG_DATA": str(folder)})
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
        """Return the processes of running trials: children of the agent's warm parent."""
        agent = self.agent
        with contextlib.suppress(psutil.NoSuchProcess):  # it may just be dying
            parents = agent.children() if agent else []
            return [trial for parent in parents for trial in parent.children()]
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
