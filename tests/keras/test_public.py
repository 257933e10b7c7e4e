"""A Keras trial that need not resume exactly uses public interfaces only, and resumes."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.framework_trials import (
    PUBLIC,
    configured,
    needs,
    parent,
    refused_where_untested,
    resumed_by_public_interfaces,
    trial,
)
from support.frameworks.keras_fields import FIELDS
from support.fuse import before

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def process(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    """A parent with Keras on a backend, for all tests of it."""
    with parent("support.frameworks.keras_trial", {"KERAS_BACKEND": request.param}) as started:
        yield started


@pytest.mark.parametrize("slots", [1, 2])
def test_a_killed_trial_resumes_at_the_epoch_of_its_checkpoint(
    process: "subprocess.Popen[str]", tmp_path: Path, slots: int
) -> None:
    """Killed within its second epoch, it trains all three batches of that again."""
    found = resumed_by_public_interfaces(
        process, tmp_path, FIELDS, [before(5)], slots, source="arrays", told=True
    )
    assert found == {"training": list(range(1, 11)), "validation": [3, 7, 10]}


def test_a_fit_that_is_not_told_its_epoch_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """In the first run already, with what to write."""
    with trial(process, tmp_path, **configured(FIELDS, **PUBLIC)) as runs:
        assert runs.train(source="arrays") == 1
        assert "initial_epoch=rung.initial_epoch()" in runs.refusal()
        assert runs.agent.reports("training") == []


def test_a_trial_that_is_complete_trains_nothing_again(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Its weights are those that it had."""
    with trial(process, tmp_path, **configured(FIELDS, **PUBLIC)) as runs:
        assert runs.train(source="arrays", told=True) == 0
        weights, said = runs.results()[0]["weights"], len(runs.agent.reports("training"))
        assert runs.train(source="arrays", told=True) == 0
        assert len(runs.agent.reports("training")) == said
        assert runs.results()[0]["weights"] == weights


def test_a_version_that_was_not_tested_is_refused_at_the_start(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Before anything is trained; public interfaces will do without the add-on."""
    refused_where_untested(process, tmp_path, FIELDS, "keras", source="arrays", told=True)
