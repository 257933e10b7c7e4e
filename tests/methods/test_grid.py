"""Every point of a grid."""

from support.searcher.scenario import Scenario, config, kinds

SPACE = {
    "b": {"c": {"type": "categorical", "vals": ["x", "y"]}},
    "a": {"type": "int", "minval": 1, "maxval": 3, "count": 3},
}


def test_every_point_in_order() -> None:
    """Trials are the grid's points in its order, as many at once as allowed."""
    scenario = Scenario(config("grid", space=SPACE, max_concurrent_trials=2))
    assert scenario.experiment.plan[0].trials == 6
    assert len(scenario.specs) == 2
    for index in range(6):
        scenario.train(index, 0.5)
    points = [spec.hparams for spec in scenario.specs.values()]
    assert points == [{"a": a, "b": {"c": c}} for a in (1, 2, 3) for c in ("x", "y")]
    assert scenario.state.phase == "ended"


def test_refused_points_are_not_replaced() -> None:
    """A point whose hyperparameters are refused is closed as errored, and no other comes."""
    scenario = Scenario(config("grid", space={"a": [1]}))
    assert kinds(scenario.exit(0, "invalid_hp")) == ["TrialClosed", "ExperimentEnded"]


def test_unlimited_concurrency() -> None:
    """A limit of 0 starts all trials at once."""
    scenario = Scenario(config("grid", space=SPACE, max_concurrent_trials=0))
    assert len(scenario.specs) == 6
