"""What follows from lines of logs that match a policy."""

from typing import Any

import pytest

from rung.events.trial import LogMatched, RunRequested, TrialClosed
from support.searcher.scenario import EXPERIMENT, Scenario, config, kinds


def matched(action: str, *, agent_id: str = "node-a", run: int = 1) -> LogMatched:
    """Return that the first trial's log matched a policy."""
    return LogMatched(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.0",
        run=run,
        agent_id=agent_id,
        policy="oom",
        action=action,
        rank=0,
        line="CUDA out of memory",
    )


@pytest.mark.parametrize("more", [{}, {"machine": True}])
def test_a_trial_whose_retries_are_canceled_is_errored(more: dict[str, Any]) -> None:
    """As soon as it fails, and says which policy did that."""
    scenario = Scenario(config("single"))
    assert scenario.tell(matched("cancel_retries")) == []

    closed, ended = scenario.exit(0, "failed", message="boom", **more)

    assert isinstance(closed, TrialClosed)
    assert (closed.state, closed.cause) == ("errored", "boom")
    assert closed.reason == (
        "not tried again, because its log matched the policy 'oom' in run 1 on node-a: boom"
    )
    assert kinds([ended]) == ["ExperimentEnded"]


@pytest.mark.parametrize("end", ["lose", "preempted", "finished"])
def test_what_is_no_failure_goes_on(end: Any) -> None:
    """A lost agent, a preemption and the end are as they are without a policy."""
    scenario = Scenario(config("single"))
    scenario.tell(matched("cancel_retries"))
    made = scenario.lose(0) if end == "lose" else scenario.exit(0, end)

    if end == "finished":
        assert kinds(made) == ["TrialClosed", "ExperimentEnded"]
    else:
        assert kinds(made) == ["RunRequested"]


def test_later_runs_go_to_other_agents() -> None:
    """Each agent on which a run matched is excluded, in the order in which that came."""
    scenario = Scenario(config("single"))
    scenario.tell(matched("exclude_node"))
    scenario.tell(matched("exclude_node"))
    (second,) = scenario.exit(0, "failed", message="ECC")
    assert isinstance(second, RunRequested)
    assert second.excluded == ["node-a"]

    scenario.tell(matched("exclude_node", agent_id="node-b", run=2))
    (third,) = scenario.lose(0)
    assert isinstance(third, RunRequested)
    assert third.excluded == ["node-a", "node-b"]


def test_a_match_may_come_after_the_run() -> None:
    """Of several agents, one may report a match after another reported the end."""
    scenario = Scenario(config("single"))
    assert kinds(scenario.exit(0, "failed", message="boom")) == ["RunRequested"]
    scenario.tell(matched("cancel_retries"))

    assert kinds(scenario.exit(0, "failed", message="boom")) == ["TrialClosed", "ExperimentEnded"]


@pytest.mark.parametrize("action", ["webhook", "", "of_a_newer_release"])
def test_other_actions_change_nothing(action: str) -> None:
    """They are for others to read."""
    scenario = Scenario(config("single"))
    scenario.tell(matched(action))
    (again,) = scenario.exit(0, "failed", message="boom")
    assert isinstance(again, RunRequested)
    assert again.excluded == []
