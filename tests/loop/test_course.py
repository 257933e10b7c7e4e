"""What a course measures and decides by itself."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import msgspec
import pytest

from core.agent_end import AgentEnd, agent_end
from rung import core
from rung.core.protocol import Stored
from rung.loop import Course
from rung.storage import FolderStore
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


ASHA = {
    "name": "async_halving",
    "metric": "loss",
    "num_rungs": 3,
    "divisor": 2.0,
    "max_trials": 9,
    "max_time": 8,
}
"""Its rungs are 2, 4 and 8."""


def validated(course: Course, epochs: int) -> list[int]:
    """Train epochs of two batches, as a framework would; return where it validates."""
    found = []
    for batch in range(2 * epochs):
        if course.complete:
            break
        course.batch_done()
        if batch % 2:
            course.epoch_done()
        if course.validation_due:
            course.validated({"loss": 0.5})
            found.append(course.progress.batches)
            assert not course.validation_due
    return found


@pytest.mark.parametrize(
    ("time_metric", "left", "expected"),
    [
        ("epochs", 3, [4, 8, 16]),
        ("epochs", 4, [4, 8, 16]),
        ("batches", 1, [2, 4, 8]),
        ("batches", 2, [2, 4, 8]),
    ],
)
def test_a_loop_is_told_to_validate_at_the_rungs_of_its_search(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    time_metric: str,
    left: int,
    expected: list[int],
) -> None:
    """Once at each, also where a run leaves between two rungs or right at one."""
    monkeypatch.chdir(tmp_path)
    found = []
    fields = {"length": 8, "time_metric": time_metric, "config": {"searcher": ASHA}}
    with agent_end(tmp_path / "agent", **fields) as agent:
        for number, epochs in (1, left), (2, 8):
            stored = [message.checkpoint_id for message in agent.of(Stored)]
            agent.spec = msgspec.structs.replace(agent.spec, run=number, restore=stored)
            for name, value in agent.environment.items():
                monkeypatch.setenv(name, value)
            with core.init() as run:
                course = Course(run, "test-1")
                with course.found() as brought:
                    assert (brought is None) == (number == 1)
                found += validated(course, epochs)
                course.store(lambda _folder: None)
            agent.wait_for_end(number)
    assert found == expected


def test_a_checkpoint_is_stored_behind_training_and_before_the_end(
    agent: AgentEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop waits for the files of the moment, not for the store; the run's end does."""
    may_store, real = Event(), FolderStore.put_bytes

    def put_bytes(self: FolderStore, name: str, data: bytes) -> None:
        assert may_store.wait(20.0)
        real(self, name, data)

    monkeypatch.setattr(FolderStore, "put_bytes", put_bytes)
    with core.init() as run:
        course = Course(run, "test-1")
        course.batch_done()
        course.store(lambda folder: (folder / "weights").touch())
        course.batch_done()
        assert not run.checkpoint.stored()
        may_store.set()
    agent.wait_for_end()
    assert [stored.steps_completed for stored in agent.of(Stored)] == [1]
