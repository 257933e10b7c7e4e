"""What results depend on beside the script."""

from pathlib import Path

import msgspec
import pytest
import structlog

from rung import core
from rung.core.ipc.environment import ALLOCATION_VARIABLE
from rung.core.ipc.protocol import Stored
from rung.training import ProgressTracker
from support.agent_end import agent_end


def test_a_run_that_goes_on_elsewhere_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a batch was trained, as nobody knows before that which devices are used."""
    monkeypatch.chdir(tmp_path)
    with agent_end(tmp_path / "agent", length=9) as agent:
        for name, value in agent.environment.items():
            monkeypatch.setenv(name, value)
        with core.init() as run:
            tracker = ProgressTracker(run, "test-1", lambda: {"GPU": "small"})
            tracker.batch_done()
            tracker.store(lambda _folder: None)
        agent.wait_for_end()
        restore = [stored.checkpoint_id for stored in agent.of(Stored)]
        agent.spec = msgspec.structs.replace(agent.spec, run=2, restore=restore)
        monkeypatch.setenv(ALLOCATION_VARIABLE, "exp00000.3.2")
        with core.init() as run, structlog.testing.capture_logs() as logs:
            tracker = ProgressTracker(run, "test-2", lambda: {"GPU": "large"})
            with tracker.found():
                pass
            assert [it["event"] for it in logs] == ["training resumes"]
            tracker.batch_done()
            tracker.batch_done()
    [_, told] = logs
    assert "framework test-1 then, test-2 now" in told["event"]
    assert "GPU small then, large now" in told["event"]
