"""What a tracker measures and decides by itself."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import msgspec
import pytest

from rung import core
from rung.core.ipc.protocol import Stored
from rung.storage import FolderStore
from rung.training import ProgressTracker
from rung.training.data_wait import DataWait
from support.agent_end import AgentEnd, agent_end


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
        tracker = ProgressTracker(run, "test-1", dict)
        tracker._wait = DataWait(clock=lambda: next(moments), period_s=1.0)
        assert tracker.fetched(lambda: "batch") == "batch"
        tracker.batch_done()
        tracker.report({"loss": 0.5})
    agent.wait_for_end()
    assert agent.reports("training") == [(1, {"loss": 0.5})]
    assert agent.reports("system") == [(1, {"data_wait_fraction": 0.75})]


def test_a_loop_that_measures_nothing_reports_nothing_of_it(agent: AgentEnd) -> None:
    """Batches that came by themselves say nothing about waiting."""
    with core.init() as run:
        tracker = ProgressTracker(run, "test-1", dict)
        tracker.batch_done(4)
        tracker.report({"loss": 0.5})
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


def validated(tracker: ProgressTracker, epochs: int) -> list[int]:
    """Train epochs of two batches, as a framework would; return where it validates."""
    found = []
    for batch in range(2 * epochs):
        if tracker.complete:
            break
        tracker.batch_done()
        if batch % 2:
            tracker.epoch_done()
        if tracker.validation_due:
            tracker.validated({"loss": 0.5})
            found.append(tracker.progress.batches)
            assert not tracker.validation_due
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
    config = {"searcher": ASHA, "min_validation_period": {"batches": 0}}
    fields = {"length": 8, "time_metric": time_metric, "config": config}
    with agent_end(tmp_path / "agent", **fields) as agent:
        for number, epochs in (1, left), (2, 8):
            stored = [message.checkpoint_id for message in agent.of(Stored)]
            agent.spec = msgspec.structs.replace(agent.spec, run=number, restore=stored)
            for name, value in agent.environment.items():
                monkeypatch.setenv(name, value)
            with core.init() as run:
                tracker = ProgressTracker(run, "test-1", dict)
                with tracker.found() as brought:
                    assert (brought is None) == (number == 1)
                found += validated(tracker, epochs)
                tracker.store(lambda _folder: None)
            agent.wait_for_end(number)
    assert found == expected


@pytest.mark.parametrize(("final", "expected"), [(True, [1]), (False, [1, 2])])
def test_a_stopped_trial_keeps_the_checkpoint_of_its_validation(
    agent: AgentEnd,
    final: bool,  # noqa: FBT001 - a parameter of the test
    expected: list[int],
) -> None:
    """It is stopped because of that validation, and trains no more."""
    with core.init() as run:
        tracker = ProgressTracker(run, "test-1", dict)
        tracker.batch_done()
        tracker.validated({"loss": 0.5})
        assert not tracker.leaving
        assert tracker.checkpoint_due
        tracker.store(lambda folder: (folder / "weights").touch())
        tracker.batch_done()
        agent.preempt(final=final)
        while not tracker.leaving:
            pass
        tracker.store(lambda folder: (folder / "weights").touch())
    agent.wait_for_end()
    assert [stored.steps_completed for stored in agent.of(Stored)] == expected


def test_checkpoints_come_by_the_clock(agent: AgentEnd) -> None:
    """Half a minute after the first batch, and a minute after the one before."""
    now, found = 0.0, []
    with core.init() as run:
        tracker = ProgressTracker(run, "test-1", dict)
        tracker._schedule._clock = lambda: now
        for batch in range(200):
            now = float(batch)
            tracker.batch_done()
            assert not tracker.leaving
            if tracker.checkpoint_due:
                found.append(batch)
                tracker.store(lambda folder: (folder / "weights").touch())
                run.checkpoint.wait()
    assert found == [30, 90, 150]
    agent.wait_for_end()
    assert agent.reports("system") == [
        (32, {"checkpoint_period_s": 60.0, "checkpoint_held_s": 0.0, "checkpoint_stored_s": 1.0})
    ]


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
        tracker = ProgressTracker(run, "test-1", dict)
        tracker.batch_done()
        tracker.store(lambda folder: (folder / "weights").touch())
        tracker.batch_done()
        assert not run.checkpoint.stored()
        may_store.set()
    agent.wait_for_end()
    assert [stored.steps_completed for stored in agent.of(Stored)] == [1]
