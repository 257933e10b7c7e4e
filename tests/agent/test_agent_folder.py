"""An agent's folder is one agent's alone."""

import os
from pathlib import Path

import pytest

from rung.agent.agent_folder import AgentRefused, lock_folder


def test_a_folder_is_taken_once(tmp_path: Path) -> None:
    """Until who has it lets go; a folder that cannot be made is said to be so."""
    folder = tmp_path / "agent"
    lock = lock_folder(folder)
    with pytest.raises(AgentRefused, match="another agent uses the folder"):
        lock_folder(folder)
    os.close(lock)
    os.close(lock_folder(folder))
    (tmp_path / "file").touch()
    with pytest.raises(AgentRefused, match="cannot be used"):
        lock_folder(tmp_path / "file" / "agent")
