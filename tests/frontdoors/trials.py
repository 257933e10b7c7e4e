"""Trials of a framework, run after run, against an agent's end; and what must hold for each."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.agent_end import AgentEnd, agent_end
from rung.core.protocol import Stored

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"}


def needs(*packages: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests whose framework is not installed, and says so.

    A folder of tests of the same name does not count as the package.
    """
    missing = [name for name in packages if not installed(name)]
    reason = f"not installed: {', '.join(missing)} (pip install -e '.[frameworks,examples]')"
    return pytest.mark.skipif(bool(missing), reason=reason)


def installed(package: str) -> bool:
    """Return whether a package is there."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


class Runs:
    """One trial in a folder of its own: run after run, with what they said and left."""

    def __init__(self, parent: "subprocess.Popen[str]", agent: AgentEnd, folder: Path) -> None:
        self._parent = parent
        self._folder = folder
        self.agent = agent

    def train(self, moment: int | None = None, *, length: int | None = None, **order: Any) -> int:
        """Train the next run and return its exit code."""
        stored = [message.checkpoint_id for message in self.agent.of(Stored)]
        number = len(self.agent.hellos) + 1
        changes: dict[str, Any] = {"run": number, "restore": stored[::-1]}
        if length is not None:
            changes["length"] = length
        self.agent.spec = msgspec.structs.replace(self.agent.spec, **changes)
        full = {
            "environment": self.agent.environment,
            "folder": str(self._folder),
            "moment": moment,
            **order,
        }
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(full) + "\n")
        self._parent.stdin.flush()
        code = int(self._parent.stdout.readline())
        self.agent.wait_for_end(number)
        return code

    def curve(self, kind: str) -> dict[int, dict[str, Any]]:
        """Return the metrics by step; a step reported twice said the same twice."""
        found: dict[int, dict[str, Any]] = {}
        for step, values in self.agent.reports(kind):
            assert found.setdefault(step, values) == values, step
        return found

    def outcome(self) -> dict[str, Any]:
        """Return what the finished trial is: its curves and what it left."""
        result: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return {
            "result": result,
            "training": self.curve("training"),
            "validation": self.curve("validation"),
        }


@contextlib.contextmanager
def parent(
    module: str, environment: Mapping[str, str], runner: str = "frontdoors.runner"
) -> Iterator["subprocess.Popen[str]"]:
    """Yield a process that has a framework imported and forks trials."""
    path = [str(Path(__file__).parents[1]), *sys.path]
    with subprocess.Popen(
        [sys.executable, "-m", runner, module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | QUIET | {"PYTHONPATH": os.pathsep.join(path)} | dict(environment),
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@contextlib.contextmanager
def trial(process: "subprocess.Popen[str]", folder: Path, **fields: Any) -> Iterator[Runs]:
    """Yield the runs of a trial."""
    with agent_end(folder, **fields) as agent:
        yield Runs(process, agent, folder)


def killed_everywhere(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    moments: range,
    **order: Any,
) -> dict[str, Any]:
    """Kill a trial at each of some moments, go on, and hold it to the one that nobody killed."""
    with trial(process, folder / "unbroken", **fields) as runs:
        assert runs.train(**order) == 0
        expected = runs.outcome()
    for moment in moments:
        with trial(process, folder / str(moment), **fields) as runs:
            assert runs.train(moment, **order) == -signal.SIGKILL, moment
            assert runs.train(**order) == 0, moment
            assert runs.outcome() == expected, moment
    return expected


def killed_again_and_again(
    process: "subprocess.Popen[str]",
    folder: Path,
    fields: Mapping[str, Any],
    moments: Sequence[int],
    **order: Any,
) -> dict[str, Any]:
    """Kill one trial at each of some moments, and hold it to the one that nobody killed.

    Each run goes on from what the one before it left, so the moments ascend.
    """
    with trial(process, folder / "unbroken", **fields) as runs:
        assert runs.train(**order) == 0
        expected = runs.outcome()
    with trial(process, folder / "killed", **fields) as runs:
        for moment in moments:
            assert runs.train(moment, **order) == -signal.SIGKILL, moment
        assert runs.train(**order) == 0
        assert runs.outcome() == expected
    return expected
