"""An agent's end to talk to."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rung import core
from support.agent_end import AgentEnd, agent_end

Managed = Callable[..., tuple[AgentEnd, core.Context]]


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Managed]:
    """Return a function that makes this process a run with the given specification."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:

        def start(**changes: Any) -> tuple[AgentEnd, core.Context]:
            number = len(os.listdir(tmp_path))  # noqa: PTH208 - only a number
            agent = stack.enter_context(agent_end(tmp_path / f"a{number}", **changes))
            for name, value in agent.environment.items():
                monkeypatch.setenv(name, value)
            return agent, stack.enter_context(core.init())

        yield start
