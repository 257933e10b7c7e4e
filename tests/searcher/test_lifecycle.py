"""How reports and the ends of runs are read: the table of the architecture page."""

from typing import Any, Literal

import pytest

from rung.events.trial import CODE_REFUSED, RunRequested
from support.searcher.scenario import Scenario, config, kinds

Ending = Literal["finished", "preempted", "failed", "killed", "invalid_hp", "lost", "dropped"]


def one(**search: Any) -> Scenario:
    """Return an experiment with one trial, in a method that compares."""
    fields = {"max_trials": 1, "num_rungs": 2, "divisor": 4.0}
    return Scenario(config("async_halving", **(fields | search)))


def end(scenario: Scenario, how: Ending) -> list[str]:
    """End the run of the only trial; return what follows."""
    if how == "lost":
        return kinds(scenario.lose(0))
    if how == "dropped":
        return kinds(scenario.drop(0))
    return kinds(scenario.exit(0, how))


AGAIN = ["RunRequested"]
CLOSED = ["TrialClosed", "ExperimentEnded"]


@pytest.mark.parametrize(
    ("how", "reached", "expected"),
    [
        ("finished", True, CLOSED),
        ("finished", False, CLOSED),
        ("preempted", True, AGAIN),
        ("preempted", False, AGAIN),
        ("failed", True, AGAIN),
        ("failed", False, AGAIN),
        ("killed", False, AGAIN),
        ("lost", True, AGAIN),
        ("lost", False, AGAIN),
        ("dropped", False, AGAIN),
    ],
)
def test_ends_that_nobody_asked_for(how: Ending, reached: bool, expected: list[str]) -> None:  # noqa: FBT001 - a table's column
    """A run that was not withdrawn closes its trial when it finished; else a new one follows."""
    scenario = one()
    scenario.report(0, 16 if reached else 3, 0.5)
    assert end(scenario, how) == expected


@pytest.mark.parametrize(
    ("how", "reached", "expected"),
    [
        ("finished", True, CLOSED),
        ("finished", False, []),
        ("preempted", True, []),
        ("preempted", False, []),
        ("failed", False, []),
        ("killed", False, []),
        ("lost", False, []),
        ("dropped", False, []),
        ("invalid_hp", False, ["TrialClosed"]),
    ],
)
def test_ends_within_a_pause(how: Ending, reached: bool, expected: list[str]) -> None:  # noqa: FBT001 - a table's column
    """A paused trial waits, unless it has trained as far as it was to."""
    scenario = one()
    scenario.report(0, 16 if reached else 3, 0.5)
    scenario.pause()
    assert end(scenario, how) == expected
    again = ["ExperimentResumed", *(["TrialRequested"] if how == "invalid_hp" else [])]
    if scenario.state.phase != "ended":
        assert kinds(scenario.resume()) == [*again, "RunRequested"]


@pytest.mark.parametrize("how", ["finished", "preempted", "failed", "killed", "lost", "dropped"])
def test_ends_within_a_cancellation(how: Ending) -> None:
    """However the run of a canceled experiment ends, its trial is closed as canceled."""
    scenario = one()
    scenario.cancel()
    assert end(scenario, how) == CLOSED
    assert scenario.history[-1][1][0].state == "canceled"  # type: ignore[union-attr]


def test_failures_are_counted_and_losses_are_not() -> None:
    """After more than max_restarts failures the trial is errored; it says how often and why."""
    scenario = one(max_restarts=2)
    for how in ("failed", "lost", "killed", "failed", "preempted"):
        assert end(scenario, how) == AGAIN
    assert scenario.specs[0].run == 6
    closed, ended = scenario.exit(0, "failed")
    assert closed.restarts == 3  # type: ignore[union-attr]
    assert closed.state == "errored"  # type: ignore[union-attr]
    assert closed.reason == "failed 3 times; max_restarts is 2: ValueError: no"  # type: ignore[union-attr]
    assert ended.state == "errored"  # type: ignore[union-attr]


def test_faults_of_the_machine_are_no_restarts() -> None:
    """However often a full disk ends a trial at one step, it goes on, and counts no restart."""
    scenario = one(max_restarts=0)
    for _ in range(5):
        same: dict[str, Any] = {"fault": "disk_full", "steps_completed": 4}
        (run,) = scenario.exit(0, "failed", machine=True, **same)
        assert isinstance(run, RunRequested)
        assert run.reason == "the machine failed the run before: ValueError: no"
    assert scenario.experiment.trials[0].restarts == 0
    assert kinds(scenario.exit(0, "failed")) == CLOSED


def test_a_gang_that_one_machine_failed_counts_no_restart() -> None:
    """Every part of the run says so; the first one counts, and is followed by one run."""
    scenario = one(max_restarts=0)
    for run in range(1, 5):
        parts = [scenario.exit(0, "failed", run=run, machine=True) for _ in range(3)]
        assert [kinds(each) for each in parts] == [AGAIN, [], []]
    assert (scenario.experiment.trials[0].restarts, scenario.specs[0].run) == (0, 5)


def test_a_fault_that_repeats_itself_is_not_tried_again() -> None:
    """The third time in a row that a trial fails in one way at one step, it is errored."""
    scenario = one(max_restarts=9)
    for _ in range(2):
        assert kinds(scenario.exit(0, "failed", fault="gpu_memory", steps_completed=7)) == AGAIN
        assert end(scenario, "preempted") == AGAIN
    closed, _ = scenario.exit(0, "failed", fault="gpu_memory", steps_completed=7)
    assert closed.state == "errored"  # type: ignore[union-attr]
    reason = "failed 3 times in the same way at step 7, so it is not tried again: ValueError: no"
    assert closed.reason == reason  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        (["a", "a", "b", "a", "a"], [7] * 5),
        (["a"] * 5, [1, 1, 2, 2, 1]),
        ([""] * 5, [7] * 5),
        (["a", "a", "", "a", "a"], [7] * 5),
        (["a"] * 4, [None, None, 7, None]),
    ],
)
def test_other_faults_or_steps_are_bad_luck(fault: list[str], steps: list[int | None]) -> None:
    """Faults of another kind, at another step, or of no known kind do not add up."""
    scenario = one(max_restarts=9)
    for kind, step in zip(fault, steps, strict=True):
        assert kinds(scenario.exit(0, "failed", fault=kind, steps_completed=step)) == AGAIN


def test_a_script_that_never_begins_is_not_tried_for_ever() -> None:
    """What fails before its first step repeats itself too."""
    scenario = one(max_restarts=9)
    for _ in range(2):
        scenario.exit(0, "failed", fault="missing_module")
    closed, _ = scenario.exit(0, "failed", fault="missing_module")
    assert "in the same way before its first step" in closed.reason  # type: ignore[union-attr]


def test_code_that_is_refused_is_not_tried_again() -> None:
    """No agent unpacks these bytes: the trial is errored at once, and says why."""
    closed, *_ = one(max_restarts=9).exit(0, "failed", fault=CODE_REFUSED)
    assert closed.state == "errored"  # type: ignore[union-attr]
    assert closed.reason == "not tried again: ValueError: no"  # type: ignore[union-attr]


def test_a_restart_says_why() -> None:
    """The reason of a new run is what ended the one before."""
    scenario = one()
    [again] = scenario.exit(0, "failed")
    assert isinstance(again, RunRequested)
    assert again.reason == "restart 1 of 2 after: ValueError: no"


@pytest.mark.parametrize("how", ["finished", "preempted", "failed", "killed", "lost"])
def test_what_was_validated_and_saved_needs_no_new_run(how: Ending) -> None:
    """However a run ends after its length is validated and saved, it has trained as asked."""
    scenario = one()
    scenario.report(0, 16, 0.5)
    scenario.store(0, 1600, "done")
    assert end(scenario, how) == CLOSED


def test_new_runs_restore_the_newest_checkpoints() -> None:
    """The newest two that are not damaged; those of earlier runs too."""
    scenario = one(max_restarts=9)
    assert scenario.specs[0].restore == []
    for steps, name in ((100, "a"), (200, "b"), (300, "c")):
        scenario.store(0, steps, name)
    scenario.exit(0, "failed")
    assert scenario.specs[0].restore == ["c", "b"]


def test_a_warm_start_until_there_is_a_checkpoint() -> None:
    """Without a checkpoint of its own a trial starts from the experiment's source."""
    scenario = one(source_checkpoint_uuid="src")
    assert scenario.specs[0].restore == ["src"]
    scenario.exit(0, "failed")
    assert scenario.specs[0].restore == ["src"]
    scenario.store(0, 100, "a")
    scenario.exit(0, "failed")
    assert scenario.specs[0].restore == ["a"]


def test_only_the_current_run_counts() -> None:
    """Reports, checkpoints and exits of an earlier run, or after its end, change nothing."""
    scenario = one()
    scenario.exit(0, "failed")
    assert scenario.report(0, 16, 0.1, run=1) == []
    assert scenario.exit(0, run=1) == []
    assert scenario.experiment.trials[0].time == -1
    scenario.pause()
    scenario.exit(0, "preempted")
    assert scenario.report(0, 16, 0.1) == []
    assert scenario.exit(0, "failed") == []
    assert scenario.experiment.trials[0].restarts == 1


def test_an_unknown_trial_changes_nothing() -> None:
    """A trial that was never requested is nobody's."""
    scenario = one()
    assert scenario.report(99, 1, 0.1, run=1) == []


def test_steps_stand_in_for_a_time_that_is_not_reported() -> None:
    """Without the time metric among its metrics, a report's time is its steps."""
    scenario = Scenario(config("random", max_trials=1, time_metric="records", max_time=500))
    scenario.report(0, 4, 0.5)
    assert scenario.experiment.trials[0].time == 400
    scenario.report(0, 5, 0.5)
    assert kinds(scenario.exit(0)) == CLOSED


def test_no_withdrawal_where_the_time_is_in_doubt() -> None:
    """A script that does not report the time metric is not withdrawn for its steps."""
    scenario = one(time_metric="records")
    assert scenario.report(0, 1, 0.5) == []
    assert scenario.report(0, 2, 0.5) == []
