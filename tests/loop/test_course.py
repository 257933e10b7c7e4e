"""What a course measures and decides by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.agent_end import AgentEnd, agent_end
from rung import core
from rung.loop import Course
from rung.torch.waiting import DataWait


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentEnd]:
    """Return an agent's end for a run of this process, over epochs."""
    monkeypatch.chdir(tmp_path)
    with agent_end(tmp_path / "agent", length=2, time_metric="epochs") as end:
        for name, value in end.environment.items():
            monkeypatch.setenv(name, value)
        yield end


def test_the_time_waited_for_data_is_reported(agent: AgentEnd) -> None:
    """Of three seconds for the data and one for the step, the loop waits three quarters."""
    moments = iter([0.0, 3.0, 4.0])
    with core.init() as run:
        course = Course(run, "test-1")
        course._wait = DataWait(clock=lambda: next(moments), period_s=1.0)
        assert course.fetched(lambda: "batch") == "batch"
        course.batch_done()
        course.report({"loss": 0.5})
    agent.wait_for_end()
    assert agent.reports("training") == [(1, {"loss": 0.5})]
    assert agent.reports("system") == [(1, {"data_wait_fraction": 0.75})]


def test_a_loop_that_measures_nothing_reports_nothing_of_it(agent: AgentEnd) -> None:
    """Batches that came by themselves say nothing about waiting."""
    with core.init() as run:
        course = Course(run, "test-1")
        course.batch_done(4)
        course.report({"loss": 0.5})
    agent.wait_for_end()
    assert agent.reports("system") == []
