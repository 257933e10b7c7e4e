"""Runs of one trial in forks of a fork server, killed at chosen moments."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from rung.core.ipc.protocol import Stored
from support.agent_end import AgentEnd


class Runs:
    """One trial in a folder of its own: run after run, with what they said and left."""

    def __init__(
        self,
        parent: "subprocess.Popen[str]",
        agent: AgentEnd,
        folder: Path,
        kind: str = "noisy",
    ) -> None:
        self._parent = parent
        self._folder = folder
        self._kind = kind
        self.agent = agent
        self.fuse = "steps"
        """Which moments count: `steps`, or `stores` of checkpoints behind them."""

    def train(self, workers: int, moment: int | None = None, **changes: Any) -> int:
        """Train the next run and return its exit code."""
        stored = [message.checkpoint_id for message in self.agent.of(Stored)]
        number = len(self.agent.hellos) + 1
        defaults: dict[str, Any] = {"run": number, "restore": stored[::-1]}
        self.agent.spec = msgspec.structs.replace(self.agent.spec, **(defaults | changes))
        order = {
            "trial": self._kind,
            "fuse": self.fuse,
            "environment": self.agent.environment,
            "folder": str(self._folder),
            "moment": moment,
            "workers": workers,
        }
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()
        code = int(self._parent.stdout.readline())
        self.agent.wait_for_end(number)
        return code

    def losses(self) -> dict[int, dict[str, float]]:
        """Return the training metrics by step; a step reported twice said the same twice."""
        found: dict[int, dict[str, float]] = {}
        for step, values in self.agent.reports("training"):
            assert found.setdefault(step, values) == values, step
        return found

    def validations(self) -> dict[int, dict[str, float]]:
        """Return the validation metrics by step; a step reported twice said the same twice."""
        found: dict[int, dict[str, float]] = {}
        for step, values in self.agent.reports("validation"):
            assert found.setdefault(step, values) == values, step
        return found

    def outcome(self) -> dict[str, Any]:
        """Return what the finished trial is: its metrics, weights, optimizer, generators."""
        result: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return result | {"losses": self.losses(), "validations at": self.validations()}
