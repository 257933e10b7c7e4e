"""An agent's end and a context to train with, in this process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from core.agent_end import AgentEnd, agent_end
from rung import torch as rt

Start = Callable[..., tuple[AgentEnd, rt.TrialContext]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Share the machine."""
    torch.set_num_threads(1)


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
