"""A TensorFlow loop that need not resume exactly uses public interfaces only, and resumes."""

import subprocess
from pathlib import Path

import pytest

from support.framework_trials import (
    PUBLIC,
    configured,
    needs,
    refused_where_untested,
    resumed_by_public_interfaces,
    trial,
)
from support.frameworks.keras_fields import FIELDS
from support.fuse import before

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("source", "slots"), [("shuffled", 1), ("endless", 1), ("function", 1), ("shuffled", 2)]
)
def test_a_killed_trial_resumes_at_the_epoch_of_its_checkpoint(
    process: "subprocess.Popen[str]", tmp_path: Path, source: str, slots: int
) -> None:
    """Killed within its second epoch, it trains all three batches of that again."""
    found = resumed_by_public_interfaces(
        process, tmp_path, FIELDS, [before(5)], slots, source=source
    )
    assert found == {"training": list(range(1, 11)), "validation": [3, 7, 10]}


def test_a_trial_that_is_complete_trains_nothing_again(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Its weights are those that it had."""
    with trial(process, tmp_path, **configured(FIELDS, **PUBLIC)) as runs:
        assert runs.train(source="shuffled") == 0
        weights, said = runs.results()[0]["weights"], len(runs.agent.reports("training"))
        assert runs.train(source="shuffled") == 0
        assert len(runs.agent.reports("training")) == said
        assert runs.results()[0]["weights"] == weights


def test_a_version_that_was_not_tested_is_refused_at_the_start(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Before anything is trained; public interfaces will do without the add-on."""
    refused_where_untested(process, tmp_path, FIELDS, "tensorflow", source="shuffled")
