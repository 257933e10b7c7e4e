"""What a trial's script set as its metadata comes with its later runs."""

import pytest

from rung.events.trial import RunRequested, TrialMetadataSet
from support.searcher.scenario import EXPERIMENT, Scenario, config


@pytest.mark.parametrize(("level", "given"), [(1, None), (2, {"rows": 3})])
def test_a_later_run_has_them(level: int, given: dict[str, int] | None) -> None:
    """After a restart, those that were set last; at level 1 there were none."""
    scenario = Scenario(config("single"), level=level)
    for metadata in ({"rows": 1}, {"rows": 3}):
        fact = TrialMetadataSet(
            experiment_id=EXPERIMENT, trial_id=f"{EXPERIMENT}.0", run=1, metadata=metadata
        )
        assert scenario.tell(fact) == []
    (again,) = scenario.lose(0)
    assert isinstance(again, RunRequested)
    assert again.spec.run == 2
    assert again.spec.metadata == given
