"""A Lightning trial that need not resume exactly uses public interfaces only, and resumes."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rung.core.ipc.protocol import Acknowledged, FromTrial, Reported, Stored
from support.framework_trials import (
    PUBLIC,
    configured,
    needs,
    refused_where_untested,
    resumed_by_public_interfaces,
    trial,
)
from support.frameworks.lightning_fields import FIELDS

pytestmark = [needs("lightning"), pytest.mark.e2e, pytest.mark.timeout(300)]
STEPS = list(range(1, 13))


@pytest.mark.parametrize(
    ("more", "validated"),
    [({}, [6, 12]), ({"accumulate": 2, "validate": 4}, [4, 6, 10, 12])],
)
def test_a_killed_trial_resumes_at_its_checkpoint(
    process: "subprocess.Popen[str]", tmp_path: Path, more: dict[str, Any], validated: list[int]
) -> None:
    """Within an epoch and behind one; each step is trained, and each validation is there."""
    found = resumed_by_public_interfaces(process, tmp_path, FIELDS, [9, 7], **more)
    assert found["training"] == STEPS
    assert set(found["validation"]) <= set(validated)
    assert found["validation"][-1] == 12


def test_several_slots_train_together(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Killed or not; the weights are the same on all of them."""
    found = resumed_by_public_interfaces(process, tmp_path, FIELDS, [9], slots=2)
    assert found == {"training": STEPS, "validation": [6, 12]}


def test_a_validation_comes_when_due_within_an_epoch(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """And at a length that is within an epoch; the trainer's least length holds nothing up."""
    fields = FIELDS | {"length": 10, "time_metric": "batches"}
    fields = configured(fields, min_validation_period={"batches": 4}, **PUBLIC)
    with trial(process, tmp_path, **fields) as runs:
        assert runs.train(trainer={"min_epochs": 5}) == 0
        assert list(runs.curve("training")) == list(range(1, 11))
        assert list(runs.curve("validation")) == [4, 6, 8, 10]
        assert runs.agent.of(Stored)[-1].steps_completed == 10


def test_a_trial_that_is_asked_to_leave_leaves_at_once(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """With a checkpoint of that step, and no report of what Lightning does on its way out."""
    with trial(process, tmp_path, **configured(FIELDS, **PUBLIC)) as runs:

        def ask(message: FromTrial) -> None:
            if isinstance(message, Reported) and message.kind == "waits":
                runs.agent.preempt()

        runs.agent.on_message = ask
        assert runs.train(wait_at=3) == 0
        assert runs.agent.of(Acknowledged)
        assert runs.agent.of(Stored)[-1].steps_completed == 3
        assert list(runs.curve("training")) == [1, 2, 3]
        assert runs.curve("validation") == {}
        assert runs.train() == 0
        assert list(runs.curve("training")) == STEPS
        assert list(runs.curve("validation")) == [6, 12]


def test_a_trial_that_is_complete_trains_nothing_again(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Where its run was killed behind its last checkpoint, or is started again."""
    with trial(process, tmp_path, **configured(FIELDS, **PUBLIC)) as runs:
        assert runs.train() == 0
        said = len(runs.agent.reports("training"))
        assert runs.train() == 0
        assert len(runs.agent.reports("training")) == said


def test_a_version_that_was_not_tested_is_refused_at_the_start(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Before anything is trained; public interfaces will do without the add-on."""
    refused_where_untested(process, tmp_path, FIELDS, "lightning")
