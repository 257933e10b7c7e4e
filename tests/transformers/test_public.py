"""A Transformers trial that need not resume exactly uses public interfaces only, and resumes."""

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
from support.frameworks.transformers_fields import FIELDS
from support.fuse import before

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
STEPS = list(range(1, 13))


@pytest.mark.parametrize("slots", [1, 2])
def test_a_killed_trial_resumes_at_its_checkpoint(
    process: "subprocess.Popen[str]", tmp_path: Path, slots: int
) -> None:
    """Within an epoch and behind one; each step is trained, and each validation is there."""
    moments = [before(4), before(9)]
    found = resumed_by_public_interfaces(process, tmp_path, FIELDS, moments, slots=slots)
    assert found == {"training": STEPS, "validation": [6, 12]}


def test_a_trial_that_is_complete_trains_nothing_again(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Its weights are those that it had."""
    with trial(process, tmp_path, **configured(FIELDS, **PUBLIC)) as runs:
        assert runs.train() == 0
        before_it = runs.results()[0]["model"]
        said = len(runs.agent.reports("training"))
        assert runs.train() == 0
        assert len(runs.agent.reports("training")) == said
        assert runs.results()[0]["model"] == before_it


def test_a_version_that_was_not_tested_is_refused_at_the_start(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Before anything is trained; public interfaces will do without the add-on."""
    refused_where_untested(process, tmp_path, FIELDS, "transformers")
