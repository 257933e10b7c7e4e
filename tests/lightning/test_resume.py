"""A Lightning trial killed at any step and started again is bit for bit the one never killed."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rung.core.ipc.protocol import Acknowledged, FromTrial, Reported, Stored
from support.framework_trials import (
    DETERMINISTIC,
    configured,
    goes_on_by_itself,
    killed_everywhere,
    needs,
    trial,
)
from support.frameworks.lightning_fields import FIELDS

pytestmark = [needs("lightning"), pytest.mark.e2e, pytest.mark.timeout(300)]
ASHA: dict[str, Any] = FIELDS["config"]["searcher"] | {
    "name": "async_halving",
    "num_rungs": 2,
    "divisor": 3.0,
    "max_trials": 9,
    "max_time": 3,
}
"""Its rungs are at the first epoch and the third."""
STEPS = 12
"""Two epochs of six batches."""
EVERYWHERE = range(1, 2 * STEPS, 2)
"""Before each step."""
PLACES = [1, 7, 11, 13, 23]
"""Before the first step, within an epoch, before and behind its end, before the last step."""


@pytest.mark.parametrize(
    "moments", [PLACES, pytest.param(EVERYWHERE, marks=[pytest.mark.versions, pytest.mark.soak])]
)
def test_no_kill_shows(
    process: "subprocess.Popen[str]", tmp_path: Path, moments: Sequence[int]
) -> None:
    """Curves, weights, optimizer, generators, and Lightning's own means are the same."""
    outcome = killed_everywhere(process, tmp_path, FIELDS, moments)
    assert list(outcome["training"]) == list(range(1, STEPS + 1))
    assert list(outcome["validation"]) == [6, 12]


@pytest.mark.parametrize("moments", [PLACES, pytest.param(EVERYWHERE, marks=pytest.mark.soak)])
def test_no_kill_shows_with_validations_within_epochs_and_accumulation(
    process: "subprocess.Popen[str]", tmp_path: Path, moments: Sequence[int]
) -> None:
    """The same where a checkpoint follows a validation, or lies between steps."""
    outcome = killed_everywhere(process, tmp_path, FIELDS, moments, validate=4, accumulate=2)
    assert list(outcome["validation"]) == [4, 10, 12]


@pytest.mark.parametrize(
    ("period", "validated"),
    [
        ({}, [12, 18]),
        ({"min_validation_period": {"batches": 4}}, [4, 8, 12, 16, 18]),
        ({"searcher": ASHA}, [6, 12, 18]),
    ],
)
def test_a_validation_comes_when_due_and_at_the_length(
    process: "subprocess.Popen[str]",
    tmp_path: Path,
    period: dict[str, Any],
    validated: list[int],
) -> None:
    """Whatever the trainer's own periods are; and its smallest length holds nothing up."""
    fields = configured(FIELDS | {"length": 3}, **period)
    with trial(process, tmp_path, **fields) as runs:
        trainer = {"check_val_every_n_epoch": 2, "min_epochs": 5}
        assert runs.train(trainer=trainer) == 0
        assert list(runs.curve("validation")) == validated
        assert list(runs.curve("training")) == list(range(1, 19))


def test_no_kill_shows_with_a_limit_of_steps_and_of_batches(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """An epoch that is cut short ends; the next one begins at its own first batch."""
    trainer = {"max_steps": 100, "limit_train_batches": 4}
    moments = range(2 * 5 - 1, 2 * 6, 2)
    outcome = killed_everywhere(process, tmp_path, FIELDS, moments, trainer=trainer)
    assert list(outcome["validation"]) == [4, 8]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"uncounted": True}, "of type Pair cannot be counted"),
        ({"named": True}, "are several loaders, whose position cannot be kept"),
    ],
)
def test_data_that_cannot_be_counted_or_kept_are_refused(
    process: "subprocess.Popen[str]", tmp_path: Path, order: dict[str, Any], said: str
) -> None:
    """The message says what to give instead."""
    with trial(process, tmp_path, **(FIELDS | {"length": 48, "time_metric": "records"})) as runs:
        assert runs.train(**order) == 1
        assert said in runs.refusal()


def test_no_kill_shows_between_steps(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """A checkpoint that is due while gradients are added up waits for the step."""
    fields = configured(FIELDS, min_checkpoint_period={"batches": 1})
    killed_everywhere(process, tmp_path, fields, range(2 * 4 - 1, 2 * 4), accumulate=2)


def test_no_kill_shows_where_no_period_is_set(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Whichever batches the clock chose, and between whatever steps."""
    goes_on_by_itself(process, tmp_path / "1", FIELDS, [7, 15, 21])
    goes_on_by_itself(process, tmp_path / "2", FIELDS, [7, 15, 21], accumulate=2)


def test_no_kill_shows_where_the_module_steps(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Gradients that it added up are in the checkpoint, within an epoch and behind one."""
    killed_everywhere(process, tmp_path, FIELDS, range(2 * 4 - 1, 2 * 8, 8), every=4)


@pytest.mark.parametrize(
    "schedule", [{"frequency": 4}, {"interval": "epoch", "frequency": 2}], ids=["step", "epoch"]
)
def test_no_kill_shows_between_two_steps_of_a_schedule(
    process: "subprocess.Popen[str]", tmp_path: Path, schedule: dict[str, Any]
) -> None:
    """Its rate follows at each fourth batch, or each second epoch, counted over all runs."""
    fields = configured(FIELDS | {"length": 3}, min_checkpoint_period={"batches": 1})
    moments = [2 * step - 1 for step in (3, 6, 13, 16)]
    killed_everywhere(process, tmp_path, fields, moments, schedule=schedule)


def test_leaving_within_an_epoch_ends_none(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Nobody is told of an epoch's end: not an early stop that has no validation to look at."""
    with trial(process, tmp_path / "unbroken", **FIELDS) as runs:
        assert runs.train() == 0
        expected = runs.outcome()
    with trial(process, tmp_path / "asked", **FIELDS) as runs:

        def ask(message: FromTrial) -> None:
            if isinstance(message, Reported) and message.kind == "waits":
                runs.agent.preempt()

        runs.agent.on_message = ask
        assert runs.train(wait_at=3) == 0
        assert runs.agent.of(Acknowledged)
        assert runs.agent.of(Stored)[-1].steps_completed == 3
        assert runs.outcome()["result"]["mean"] is None
        assert runs.train() == 0
        assert runs.outcome() == expected


def test_a_second_fit_is_refused(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """A run that goes on could not tell which of them it is in."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(length=1, fits=2) == 1
        assert list(runs.curve("training")) == [1, 2, 3, 4, 5, 6]
        assert "has called Trainer.fit() before" in runs.refusal()


def test_a_search_for_a_learning_rate_is_no_training(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Lightning's finder trains in the same loops, before fitting; its steps are nobody's."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(finder=True) == 0
        assert list(runs.curve("training")) == list(range(1, STEPS + 1))
        assert list(runs.curve("validation")) == [6, 12]


def test_every_batch_is_a_sign_of_life(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Those that are trained, validated and looked at before: an epoch may take hours."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(length=1, notes=True) == 0
        assert runs.results()[0]["beats"] == 6 + 4 + 2


def test_what_torch_is_asked_for_is_all_of_it(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """CuBLAS is, too; and a script that switches it off again is told so."""
    with trial(process, tmp_path, **configured(FIELDS | {"length": 1}, **DETERMINISTIC)) as runs:
        assert runs.train(notes=True, loose=True) == 0
        [result] = runs.results()
        assert result["cublas"] == ":4096:8"
        assert any("has switched torch." in text for text in result["warnings"])


def test_the_log_has_the_batch_size(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Of all slots together."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(length=1, slots=2, notes=True) == 0
        said = "each step trains 4 records on 2 slots together, 2 on each"
        assert said in runs.results()[0]["log"]
