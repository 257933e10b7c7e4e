"""A user of a server: by commands and by HTTP, whatever kind of installation it is."""

import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

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


class User:
    """Drives a server as a person or a script does."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Know a server.

        Args:
            folder: for the experiment files.
            environment: what the commands are told by, over this process's own.
        """
        self.folder = folder
        self._environment = {"NO_COLOR": "1", **environment}

    @property
    def server(self) -> tuple[str, str]:
        """Its URL and its token."""
        return self._environment["RUNG_URL"], self._environment["RUNG_TOKEN"]

    def rung(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as a user does."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RUNG_")}
        result = subprocess.run(
            [sys.executable, "-m", "rung.cli", *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=inherited | self._environment,
        )
        if check:
            assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"
        return result

    def get(self, path: str) -> Any:
        """Return the JSON that the gateway answers."""
        url, token = self.server
        request = urllib.request.Request(  # noqa: S310 - a loopback address of our own
            f"{url}/api/v1{path}", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
            return json.load(answer)

    def get_or_none(self, path: str) -> Any:
        """Return the answer, None while nobody answers."""
        try:
            return self.get(path)
        except (OSError, http.client.HTTPException, ValueError):
            return None

    def submit(self, config: dict[str, Any], code: Path = CURVE) -> str:
        """Submit an experiment and return its id."""
        file = self.folder / f"{config['name']}.yaml"
        file.write_text(yaml.safe_dump(config))
        answer = self.rung("submit", str(file), str(code), "--json")
        return str(json.loads(answer.stdout)["experiment_id"])

    def ended(self, experiment: str, seconds: float = 240.0) -> dict[str, Any]:
        """Wait until the experiment ended and return it."""

        def read() -> dict[str, Any] | None:
            shown: dict[str, Any] | None = self.get_or_none(f"/experiments/{experiment}")
            return shown if shown and shown["ended_at"] else None

        return wait_for(read, f"experiment {experiment} ended", seconds)

    def result(self, experiment: str) -> dict[str, Any]:
        """Return what must not depend on faults, nor on where it ran, once it has ended.

        Trials, metrics, states, and the best checkpoint to the digests of its files.
        """
        shown = self.ended(experiment)
        best = self.get(f"/experiments/{experiment}/best")
        checkpoint = self.get(f"/checkpoints/{best['checkpoint']['id']}")
        return {
            "state": shown["state"],
            "trials": [
                (t["index"], t["hparams"], t["seed"], t["state"], t["bracket"], t["validations"])
                for t in sorted(shown["trials"], key=lambda trial: trial["index"])
            ],
            "best": (best["trial"]["index"], best["value"], checkpoint["steps_completed"]),
            "content": [(f["name"], f["blake3"]) for f in checkpoint["files"]],
        }

    def validations(self, experiment: str) -> int:
        """Return how many validations the experiment shows."""
        shown = self.get_or_none(f"/experiments/{experiment}")
        return sum(len(t["validations"]) for t in shown["trials"]) if shown else 0


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
