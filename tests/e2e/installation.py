"""A real installation for tests: `rung up` as a user starts it, watched and killed at will."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml

from rung.cli.data_folder import is_running, read_server

T = TypeVar("T")

CURVE = Path(__file__).parent / "curve"


def wait_for(condition: Callable[[], T | None], what: str, seconds: float = 60.0) -> T:
    """Return what the condition returns once that is true.

    Raises:
        AssertionError: it was not within the time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)  # the condition lies in other processes: there is nothing to await
    raise AssertionError(f"not within {seconds} s: {what}")


class Installation:
    """One data folder and the `rung up` on it."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        self.folder = folder
        self.slots = slots

    def rung(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as a user does."""
        environment = {**os.environ, "RUNG_DATA": str(self.folder), "NO_COLOR": "1"}
        environment.pop("RUNG_URL", None)
        result = subprocess.run(
            [sys.executable, "-m", "rung.cli", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
        )
        if check:
            assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"
        return result

    def up(self) -> None:
        """Start it."""
        self.rung("up", "--detach", "--port", "0", "--slots", str(self.slots))

    def down(self) -> None:
        """Stop it in good order, if it runs."""
        if is_running(self.folder):
            self.rung("down")

    def get(self, path: str) -> Any:
        """Return the JSON that the gateway answers."""
        server = read_server(self.folder)
        request = urllib.request.Request(  # noqa: S310 - a loopback address of our own
            f"{server.url}/api/v1{path}", headers={"Authorization": f"Bearer {server.token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
            return json.load(answer)

    def get_or_none(self, path: str) -> Any:
        """Return the answer, None while nobody answers."""
        try:
            return self.get(path)
        except (OSError, ValueError):
            return None

    def submit(self, config: dict[str, Any], code: Path = CURVE) -> str:
        """Submit an experiment and return its id."""
        file = self.folder / f"{config['name']}.yaml"
        file.write_text(yaml.safe_dump(config))
        return str(
            json.loads(self.rung("submit", str(file), str(code), "--json").stdout)["experiment_id"]
        )

    def ended(self, experiment: str, seconds: float = 240.0) -> dict[str, Any]:
        """Wait until the experiment ended and return it."""

        def read() -> dict[str, Any] | None:
            shown: dict[str, Any] | None = self.get_or_none(f"/experiments/{experiment}")
            return shown if shown and shown["ended_at"] else None

        return wait_for(read, f"experiment {experiment} ended", seconds)

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

    def kill_server(self) -> None:
        """Kill `rung up` with SIGKILL; the agent and all trials must be gone with it."""
        server = self.server_process
        everything = [server, *server.children(recursive=True)]
        server.kill()
        _, alive = psutil.wait_procs(everything, timeout=20)
        assert not alive, f"left running: {alive}"
        wait_for(lambda: not is_running(self.folder), "the folder's lock is free")


def config(name: str, searcher: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an experiment file for the curve."""
    return {
        "name": name,
        "entrypoint": "python3 train.py",
        "hyperparameters": {
            "limit": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 4},
            "pause_s": 0.02,
        },
        "searcher": {"metric": "loss", "smaller_is_better": True, **searcher},
        "reproducibility": {"experiment_seed": 7},
        "max_restarts": 100,
        **more,
    }
