"""What all slots together train per step, and what contradicts it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rung import core
from rung.training.batch_size import BatchSize, Given, agreed, batch_size, log, wanted_by
from rung.training.units import InvalidPlan

NAME = "hyperparameters.global_batch_size"


@pytest.mark.parametrize(
    ("means", "given", "wanted", "slots", "together"),
    [
        (Given.TOGETHER, 64, None, 1, 64),
        (Given.TOGETHER, 64, None, 8, 64),
        (Given.TOGETHER, 64, 64, 8, 64),
        (Given.EITHER, 64, None, 8, 64),
        (Given.EITHER, 64, 64, 1, 64),
        (Given.EITHER, 512, 512, 8, 512),
        (Given.EITHER, 64, 512, 8, 512),  # a slot's part
        (Given.EITHER, 62, 500, 8, 500),  # a slot's part of what does not divide
        (Given.PER_SLOT, 64, None, 1, 64),
        (Given.PER_SLOT, 64, None, 8, 512),
        (Given.PER_SLOT, 64, 512, 8, 512),
        (Given.PER_SLOT, 1, None, 8, 8),
    ],
)
def test_what_agrees(
    means: Given, given: int, wanted: int | None, slots: int, together: int
) -> None:
    """A number stands for what its framework says, and the hyperparameter for all slots."""
    assert agreed(given, slots, "batch_size", means, wanted=wanted) == BatchSize(together, slots)


@pytest.mark.parametrize(
    ("means", "given", "wanted", "slots", "expected"),
    [
        (Given.EITHER, 64, 512, 1, f"it is 64, but {NAME} is 512: make them equal"),
        (
            Given.EITHER,
            64,
            500,
            8,
            f"it is 64, but {NAME} is 500: make it 500, of all 8 slots together, or 62, a slot's",
        ),
        (Given.EITHER, 512, 500, 8, f"it is 512, but {NAME} is 500: make it 500, of all 8"),
        (
            Given.TOGETHER,
            64,
            512,
            8,
            f"it is 64, of all slots together, but {NAME} is 512: make them equal, or leave",
        ),
        (
            Given.PER_SLOT,
            32,
            512,
            8,
            f"it is 32, so 8 slots train 256 together, but {NAME} is 512: make it 64, or leave",
        ),
        (
            Given.PER_SLOT,
            62,
            500,
            8,
            f"it is 62, so 8 slots train 496 together, but {NAME} is 500: make {NAME} a multiple",
        ),
        (Given.PER_SLOT, 64, 512, 1, f"it is 64, but {NAME} is 512: make them equal, or leave"),
        (
            Given.TOGETHER,
            7,
            None,
            8,
            "a batch of 7 cannot be shared between 8 slots: raise it, or lower resources",
        ),
        (Given.EITHER, 1, 4, 8, "a batch of 4 cannot be shared between 8 slots"),
    ],
)
def test_what_contradicts_itself_is_refused(
    means: Given, given: int, wanted: int | None, slots: int, expected: str
) -> None:
    """With both numbers, where they are, and what to do."""
    with pytest.raises(InvalidPlan) as refused:
        agreed(given, slots, "it", means, wanted=wanted)
    assert str(refused.value).startswith(expected)


@pytest.mark.parametrize(("value", "wanted"), [(None, None), (64, 64), (64.0, 64)])
def test_the_hyperparameter(value: Any, wanted: int | None) -> None:
    """A search draws it as a whole number, at times as 64.0."""
    assert wanted_by({"global_batch_size": value}) == wanted
    assert wanted_by({}) is None


@pytest.mark.parametrize("value", [True, "64", 0, -1, 1.5, [64]])
def test_what_is_no_number_of_records_is_refused(value: Any) -> None:
    """By the field's name."""
    with pytest.raises(InvalidPlan, match=r"hyperparameters\.global_batch_size: must be a number"):
        wanted_by({"global_batch_size": value})


@pytest.mark.parametrize(
    ("size", "line"),
    [
        (BatchSize(1), "each step trains 1 record"),
        (BatchSize(64), "each step trains 64 records"),
        (BatchSize(512, 8), "each step trains 512 records on 8 slots together, 64 on each"),
        (BatchSize(500, 8), "each step trains 500 records on 8 slots together, 62 or 63 on each"),
        (BatchSize(64, 1, 4), "each step trains 64 records; gradients are accumulated over 4"),
        (None, "each step trains a batch of the script"),
    ],
)
def test_the_log_has_it(
    size: BatchSize | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together, and on each slot."""
    monkeypatch.chdir(tmp_path)
    with core.init() as run, structlog.testing.capture_logs() as logs:
        log(run, size)
    assert [each["event"] for each in logs] == [line]


def test_only_the_chief_logs() -> None:
    """One line for all ranks; each of them gets the number."""
    with structlog.testing.capture_logs() as logs:
        for rank in range(2):
            ranks = SimpleNamespace(size=2, is_chief=rank == 0)
            run: Any = SimpleNamespace(distributed=ranks, hparams={"global_batch_size": 16})
            found = batch_size(run, 8, "it", Given.PER_SLOT, accumulated=2)
            assert found == BatchSize(16, 2, 2)
            log(run, None)
            log(run, None, each_own=True)
    first, second, third = (each["event"] for each in logs)
    assert first.endswith("on 2 slots together, 8 on each; gradients are accumulated over 2")
    assert second == "each step trains a batch of the script on 2 slots together"
    assert third == "each step trains 2 batches of the script, one on each slot"
