"""What a Transformers trial draws for its data is the same wherever it was killed."""

import signal
import subprocess
from pathlib import Path

import pytest

from support.framework_trials import (
    configured,
    killed_again_and_again,
    needs,
    trial,
)
from support.frameworks.transformers_fields import FIELDS
from support.fuse import before

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.timeout(300)]
TWICE = [before(4), before(9)]
"""Within the first epoch of six steps, and within the second."""


def test_workers_that_outlive_an_epoch_draw_anew_in_the_next(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """A run that begins in the second epoch draws for it what the unbroken one draws.

    So it is with validations.
    """
    lasting = {"dataloader_persistent_workers": True}
    killed_again_and_again(process, tmp_path, FIELDS, TWICE, workers=1, arguments=lasting)


def test_an_epoch_goes_on_with_another_number_of_workers(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """As `os.cpu_count() // n` on another machine: a record's noise follows from its index.

    That of a validation, too.
    """
    with trial(process, tmp_path / "unbroken", **FIELDS) as runs:
        assert runs.train(workers=1) == 0
        expected = runs.outcome()
    for after in (2, 0):
        with trial(process, tmp_path / str(after), **FIELDS) as runs:
            assert runs.train(TWICE[0], workers=1) == -signal.SIGKILL
            assert runs.train(workers=after) == 0
            assert runs.outcome() == expected


def test_a_script_makes_its_loader_from_its_own_data(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """It sees its data set, not Rung's; and what it draws from the loader is seeded."""
    killed_again_and_again(process, tmp_path, FIELDS, TWICE, trainer="weighing")


@pytest.mark.parametrize("workers", [0, 2])
def test_no_kill_shows_in_a_stream_that_is_read_again_and_again(
    process: "subprocess.Popen[str]", tmp_path: Path, workers: int
) -> None:
    """Noise, masks, passes and the position in a pass are the same, and so are epochs."""
    outcome = killed_again_and_again(
        process, tmp_path, FIELDS, TWICE, stream=True, workers=workers, arguments={"max_steps": 40}
    )
    assert [values["epochs"] for values in outcome["validation"].values()] == [1, 2]


def test_no_kill_shows_where_a_stream_ends_between_two_steps(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """What its last batches add to the gradients waits for the next pass: nothing is kept there.

    Of six batches each pass makes one step of four, so the kills fall into passes two and three.
    """
    outcome = killed_again_and_again(
        process,
        tmp_path,
        configured(FIELDS | {"length": 3}, min_checkpoint_period={"epochs": 1}),
        [before(2), before(3)],
        stream=True,
        accumulate=4,
        arguments={"max_steps": 40},
    )
    assert list(outcome["training"]) == [1, 2, 3]


def test_what_is_no_loader_of_torch_is_refused(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """The message says what the method is to return."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(trainer="loose") == 1
        assert "the trainer's data loader is a list" in runs.refusal()
