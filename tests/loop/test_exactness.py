"""What cannot be exact in a framework's loop is in the trial's log."""

from pathlib import Path

import msgspec
import pytest
import structlog
import torch

from core.agent_end import agent_end
from rung import core
from rung.core.protocol import ALLOCATION_VARIABLE, Stored
from rung.loop import Course, exactness


def test_a_gpu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line of the experiment file that makes results equal; a processor is exact."""
    monkeypatch.chdir(tmp_path)
    with core.init() as run, structlog.testing.capture_logs() as logs:
        exactness.tell(run, torch.device("cpu"))
        assert logs == []
        exactness.tell(run, torch.device("cuda"))
    [told] = logs
    assert "reproducibility: {deterministic: true}" in told["event"]


def test_a_run_that_goes_on_elsewhere_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a batch was trained, as nobody knows before that which devices are used."""
    monkeypatch.chdir(tmp_path)
    with agent_end(tmp_path / "agent", length=9) as agent:
        for name, value in agent.environment.items():
            monkeypatch.setenv(name, value)
        with core.init() as run:
            course = Course(run, "test-1", lambda: {"GPU": "small"})
            course.batch_done()
            course.store(lambda _folder: None)
        agent.wait_for_end()
        restore = [stored.checkpoint_id for stored in agent.of(Stored)]
        agent.spec = msgspec.structs.replace(agent.spec, run=2, restore=restore)
        monkeypatch.setenv(ALLOCATION_VARIABLE, "exp00000.3.2")
        with core.init() as run, structlog.testing.capture_logs() as logs:
            course = Course(run, "test-2", lambda: {"GPU": "large"})
            with course.found():
                pass
            assert logs == []
            course.batch_done()
            course.batch_done()
    [told] = logs
    assert "framework test-1 then, test-2 now" in told["event"]
    assert "GPU small then, large now" in told["event"]
