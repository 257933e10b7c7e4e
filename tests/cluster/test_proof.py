"""The proofs fail when something is missing: who reports less than its script says is found."""

from typing import Any

import pytest

from cluster.proof import TRAINING, VALIDATION, Row, assert_as_said

SHOWN: dict[str, Any] = {
    "id": "e.0",
    "seed": 7,
    "hparams": {"limit": 0.5},
    "validations": [{}, {}],
}
# The first steps of the digest chain of this seed and these hyperparameters.
NOISES = (0.7281508643645793, 0.5787493772804737, 0.3210813235491514)


def _rows(trainings: int, validations: int) -> dict[Row, float]:
    rows: dict[Row, float] = {}
    for step, noise in enumerate(NOISES, 1):
        if step <= trainings:
            rows["e.0", *TRAINING, step] = noise
        if step <= validations:
            rows["e.0", *VALIDATION, step] = 0.5 + (1 + noise) / step
    return rows


@pytest.mark.parametrize(("trainings", "validations"), [(2, 2), (3, 2), (3, 3)])
def test_what_a_trial_said(trainings: int, validations: int) -> None:
    """Both reports of each step are there; a last run may have come further by half a step."""
    assert_as_said(SHOWN, _rows(trainings, validations))


@pytest.mark.parametrize("lost", [*_rows(3, 3)])
def test_a_lost_report(lost: Row) -> None:
    """A report that is not there is found, but for the second of a step that does not count."""
    rows = _rows(3, 3)
    del rows[lost]
    if lost == ("e.0", *VALIDATION, 3):
        assert_as_said(SHOWN, rows)
    else:
        with pytest.raises(AssertionError):
            assert_as_said(SHOWN, rows)


def test_all_is_lost() -> None:
    """Nothing at all is not enough, nor are the validations alone."""
    for rows in ({}, {row: value for row, value in _rows(2, 2).items() if row[1] != TRAINING[0]}):
        with pytest.raises(AssertionError):
            assert_as_said(SHOWN, rows)


def test_another_value() -> None:
    """A training metric that the script did not report is found."""
    rows = _rows(2, 2)
    rows["e.0", *TRAINING, 1] += 1e-9
    with pytest.raises(AssertionError):
        assert_as_said(SHOWN, rows)


def test_what_is_not_the_scripts() -> None:
    """What the agent measures, and what other trials say, is not asked for."""
    others = {("e.0", "system", "cpu_percent", 1_760_000_000): 3.0, ("e.1", *TRAINING, 9): 0.5}
    assert_as_said(SHOWN, _rows(2, 2) | others)
