"""One trial, trained in full."""

from rung.events.experiment import BracketPlan
from support.searcher.scenario import Scenario, config, kinds


def test_one_trial_and_the_end() -> None:
    """A single search plans one trial, trains it to its length and ends with it."""
    scenario = Scenario(config("single"))
    assert kinds(scenario.first) == ["SearchPlanned", "TrialRequested", "RunRequested"]
    assert scenario.experiment.plan == [BracketPlan(bracket=0, lengths=[16], trials=1)]
    assert scenario.specs[0].length == 16
    assert kinds(scenario.train(0, 0.5)) == ["TrialClosed", "ExperimentEnded"]


def test_without_a_length_the_script_decides() -> None:
    """A trial without a length is completed when its script ends, whatever it reported."""
    scenario = Scenario(config("single", max_time=None))
    assert scenario.experiment.plan == [BracketPlan(bracket=0, lengths=[], trials=1)]
    assert scenario.specs[0].length is None
    assert scenario.report(0, 1_000_000, 0.5) == []
    closed, ended = scenario.exit(0)
    assert (closed.state, ended.state) == ("completed", "completed")  # type: ignore[union-attr]


def test_a_script_may_train_past_its_length() -> None:
    """Where nothing is compared, a script that goes on is let go on."""
    scenario = Scenario(config("single"))
    assert [scenario.report(0, time, 0.5) for time in (16, 17, 18)] == [[], [], []]
