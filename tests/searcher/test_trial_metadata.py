"""What a trial's script set as its metadata comes with its later runs."""

from rung.events.trial import RunRequested, TrialMetadataSet
from support.searcher.scenario import EXPERIMENT, Scenario, config


def test_a_later_run_has_them() -> None:
    """After a restart, those that were set last."""
    scenario = Scenario(config("single"))
    for metadata in ({"rows": 1}, {"rows": 3}):
        fact = TrialMetadataSet(
            experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.0", run=1, metadata=metadata
        )
        assert scenario.tell(fact) == []
    (again,) = scenario.lose(0)
    assert isinstance(again, RunRequested)
    assert again.spec.run == 2
    assert again.spec.metadata == {"rows": 3}
