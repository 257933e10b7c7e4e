"""Trials drawn at random."""

from support.searcher.scenario import Scenario, config, kinds


def test_as_many_as_asked_for() -> None:
    """As many trials as allowed run at once; the next starts when one is closed."""
    scenario = Scenario(config(max_trials=5, max_concurrent_trials=2))
    assert sorted(scenario.specs) == [0, 1]
    assert kinds(scenario.train(1, 0.5)) == ["TrialClosed", "TrialRequested", "RunRequested"]
    assert kinds(scenario.train(0, 0.5)) == ["TrialClosed", "TrialRequested", "RunRequested"]
    assert sorted(scenario.specs) == [0, 1, 2, 3]


def test_hyperparameters_do_not_depend_on_the_order() -> None:
    """A trial has its hyperparameters and its seed whatever finished before it."""
    one = Scenario(config(max_trials=5, max_concurrent_trials=1))
    for index in range(4):
        one.train(index, 0.5)
    all_at_once = Scenario(config(max_trials=5, max_concurrent_trials=0))
    drawn = [
        [(spec.hparams, spec.seed) for spec in it.specs.values()] for it in (one, all_at_once)
    ]
    assert drawn[0] == drawn[1]


def test_refused_hyperparameters_are_replaced_up_to_a_limit() -> None:
    """A script that refuses everything gets twice max_trials trials, then the search ends."""
    scenario = Scenario(config(max_trials=3, max_concurrent_trials=1))
    index = 0
    while scenario.state.phase != "ended":
        scenario.exit(index, "invalid_hp")
        index += 1
    assert index == 6
    assert scenario.history[-1][1][-1].state == "errored"  # type: ignore[union-attr]


def test_a_replaced_trial_does_not_count() -> None:
    """max_trials valid trials are trained all the same."""
    scenario = Scenario(config(max_trials=2, max_concurrent_trials=0))
    assert kinds(scenario.exit(0, "invalid_hp")) == [
        "TrialClosed",
        "TrialRequested",
        "RunRequested",
    ]
    scenario.train(1, 0.5)
    ended = scenario.train(2, 0.5)[-1]
    assert ended.reason.startswith("1 of 3 trials errored: ")  # type: ignore[union-attr]
    assert ended.reason.endswith("; 2 completed")  # type: ignore[union-attr]
