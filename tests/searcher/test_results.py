"""Which trials and searches have a usable result, and what is said of those that have none."""

from typing import Any

import pytest

from rung.events import Payload
from rung.events.experiment import ExperimentEnded
from rung.events.trial import FAULTS_OF_CODE, MetricValue, TrialClosed
from support.searcher.scenario import EXPERIMENT, Scenario, config


def search(name: str = "random", **more: Any) -> Scenario:
    """Return a search of two trials to epoch 4, or of another method."""
    fields: dict[str, Any] = {"max_time": 4, "max_restarts": 0}
    fields |= {} if name == "single" else {"max_trials": 2}
    return Scenario(config(name, **{**fields, **more}))


def asha(**more: Any) -> Scenario:
    """Return an ASHA search that compares three trials at epochs 1 and 4."""
    return search("async_halving", max_trials=3, num_rungs=2, divisor=4.0, **more)


def closed(decisions: list[Payload]) -> TrialClosed:
    """Return the one trial that was closed."""
    [found] = [data for data in decisions if isinstance(data, TrialClosed)]
    return found


def ended(scenario: Scenario) -> ExperimentEnded:
    """Return the end of the experiment."""
    [found] = [
        data
        for _, decisions in scenario.history
        for data in decisions
        if isinstance(data, ExperimentEnded)
    ]
    return found


def test_a_trial_that_never_validates_is_errored() -> None:
    """Its end, its cause and the end of the search say so."""
    scenario = search()
    one = closed(scenario.exit(0))
    scenario.exit(1)

    cause = "the script reported no validation, so there is no loss"
    assert (one.state, one.cause) == ("errored", cause)
    assert one.reason == f"{cause}; the script ended by itself at 0 of 4"
    end = ended(scenario)
    assert (end.state, end.reason) == (
        "errored",
        f"all 2 trials errored: {cause} ({EXPERIMENT}.0)",
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [("NaN", "NaN"), ("Infinity", "Infinity"), ("-Infinity", "-Infinity"), (None, "absent")],
)
@pytest.mark.parametrize("name", ["random", "single"])
def test_a_trial_whose_values_are_no_numbers_is_errored(
    name: str, value: MetricValue | None, shown: str
) -> None:
    """The first of them is named; also where it stored checkpoints, and in a plain training."""
    scenario = search(name)
    scenario.report(0, 1, value)
    scenario.store(0, 100, "c")
    scenario.report(0, 4, value)
    one = closed(scenario.exit(0))

    assert one.state == "errored"
    assert one.cause == f"no value of loss was a finite number: it was {shown} at batch 100"
    assert one.reason == f"{one.cause}; trained to 4"


def test_one_finite_value_is_a_result() -> None:
    """A trial that diverged after it is completed, and says where."""
    scenario = search()
    scenario.report(0, 1, 0.5)
    scenario.report(0, 2, "NaN")
    scenario.report(0, 4, "NaN")
    one = closed(scenario.exit(0))

    assert (one.state, one.cause) == ("completed", "")
    assert one.reason == "trained to 4; loss was NaN at batch 200 and from there on"

    scenario.report(1, 1, "NaN")
    scenario.report(1, 4, 0.5)
    assert closed(scenario.exit(1)).reason == "trained to 4"
    assert ended(scenario).reason == "2 trials: 2 completed"


@pytest.mark.parametrize(("name", "state"), [("single", "completed"), ("random", "errored")])
@pytest.mark.parametrize("under_way", [False, True])
def test_a_checkpoint_without_a_value_is_a_result_of_a_plain_training_alone(
    name: str, state: str, *, under_way: bool
) -> None:
    """A search has nothing to compare by; an upload that is under way counts as a checkpoint."""
    scenario = search(name, max_trials=1) if name == "random" else search(name)
    if under_way:
        one = closed(scenario.exit(0, under_way=["c"]))
    else:
        scenario.store(0, 100, "c")
        one = closed(scenario.exit(0))
    assert one.state == state
    assert ended(scenario).state == state


def test_trials_that_fail_after_their_first_report_are_no_result() -> None:
    """The search is errored though it stopped some of them before they failed."""
    scenario = asha()
    scenario.report(0, 1, 0.1)
    scenario.report(1, 1, 0.2)
    scenario.report(2, 1, 0.3)
    assert closed(scenario.exit(1, "preempted")).state == "stopped"
    assert closed(scenario.exit(2, "failed")).state == "stopped"
    assert closed(scenario.exit(0, "failed")).cause == "ValueError: no"

    end = ended(scenario)
    assert end.state == "errored"
    assert end.reason == (f"1 of 3 trials errored: ValueError: no ({EXPERIMENT}.0); 2 stopped")


def test_a_trial_that_is_stopped_counts_beside_one_that_completed() -> None:
    """ASHA's usual end, and one with a trial that diverged: it is errored, the search is not."""
    scenario = asha()
    scenario.report(0, 1, 0.1)
    scenario.report(1, 1, 0.2)
    scenario.report(2, 1, "NaN")
    assert closed(scenario.exit(1, "preempted")).state == "stopped"
    diverged = closed(scenario.exit(2, "preempted"))
    assert diverged.state == "errored"
    assert diverged.reason.startswith("no value of loss was a finite number: it was NaN at batch")
    scenario.train(0, 0.1)

    assert ended(scenario).state == "completed"
    assert ended(scenario).reason == (
        f"1 of 3 trials errored: {diverged.cause} ({EXPERIMENT}.2); 1 completed, 1 stopped"
    )


def test_part_of_a_search_may_fail() -> None:
    """It is completed, with the commonest cause, which numbers and folders do not tell apart."""
    scenario = search(max_trials=5, max_concurrent_trials=0)
    for index, message in enumerate(
        [
            "KeyError: 'x' (exit code 1)",
            "OSError: /data/run-0/part.bin at 0x7f00 is 3.5 long",
            "OSError: /data/run-17/part.bin at 0x7fab is -1e-3 long",
        ]
    ):
        scenario.exit(index, "failed", message=message)
    scenario.train(3, 0.1)
    scenario.train(4, 0.1)

    end = ended(scenario)
    assert end.state == "completed"
    assert end.reason == (
        "3 of 5 trials errored, 2 of them: OSError: /data/run-0/part.bin at 0x7f00 is 3.5 long"
        f" ({EXPERIMENT}.1); 2 completed"
    )


@pytest.mark.parametrize("fault", sorted(FAULTS_OF_CODE))
def test_a_fault_of_the_code_itself_is_not_tried_again(fault: str) -> None:
    """Others are."""
    scenario = search("single", max_restarts=5)
    one = closed(scenario.exit(0, "failed", fault=fault))
    assert one.reason == "not tried again: ValueError: no"
    assert one.cause == "ValueError: no"
    other = search("single", max_restarts=5).exit(0, "failed", fault="KeyError")
    assert not [data for data in other if isinstance(data, TrialClosed)]


def test_a_canceled_search_stays_canceled() -> None:
    """Whatever its trials reported, and whether or not they did."""
    scenario = search()
    scenario.report(0, 1, "NaN")
    scenario.cancel()
    scenario.exit(0, "preempted")
    assert closed(scenario.exit(1, "preempted")).state == "canceled"
    assert ended(scenario).state == "canceled"
