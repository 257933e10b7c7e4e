"""An agent's end and a context to train with, in this process, or in forks of a fork server."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from rung import torch as rt
from support.agent_end import AgentEnd, agent_end

Start = Callable[..., tuple[AgentEnd, rt.TrialContext]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Share the machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def parent() -> Iterator["subprocess.Popen[str]"]:
    """A process that has torch imported and forks trials."""
    tests, also = str(Path(__file__).parents[1]), filter(None, [os.environ.get("PYTHONPATH")])
    with subprocess.Popen(
        [sys.executable, "-m", "support.trials.runner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([tests, *also])},
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that makes this process a run with the given specification."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        number = iter(range(100))

        def begin(folder: Path | None = None, **changes: Any) -> tuple[AgentEnd, rt.TrialContext]:
            place = folder or tmp_path / f"a{next(number)}"
            agent = stack.enter_context(agent_end(place, **changes))
            for name, value in agent.environment.items():
                monkeypatch.setenv(name, value)
            return agent, stack.enter_context(rt.init())

        yield begin
