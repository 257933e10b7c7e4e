"""A rank's part of a batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rung.events import RungError
from support.framework_trials import needs

pytestmark = [needs("tensorflow", "keras"), pytest.mark.e2e]
Part = Callable[[str], Any]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("records", [3, 6, 8])
def test_parts_are_disjoint_and_complete(part: Part, records: int, size: int) -> None:
    """Every record is in one part; shares add up to one; a rank without any computes, too."""
    batch = {"x": np.arange(records), "y": np.arange(2 * records).reshape(records, 2)}
    parts = [part("batch_split").part_of(batch, rank, size) for rank in range(size)]
    counted = [each.batch["x"][: each.own].tolist() for each in parts]
    assert [number for own in counted for number in own] == list(range(records))
    assert sum(each.share for each in parts) == pytest.approx(1)
    assert {each.whole for each in parts} == {records}
    assert all(len(each.batch["y"]) >= 1 for each in parts)


def test_one_slot_gets_what_was_given(part: Part) -> None:
    """The very batch, not a copy."""
    batch = (np.arange(3), np.arange(3))
    assert part("batch_split").part_of(batch, 0, 1).batch is batch


@pytest.mark.parametrize("batch", [3.0, ([1, 2],), (np.arange(3), np.arange(4))])
def test_what_cannot_be_counted_is_refused(part: Part, batch: Any) -> None:
    """Numbers, and arrays that do not agree."""
    with pytest.raises(RungError, match="first dimension"):
        part("batch_split").part_of(batch, 0, 2)


def test_batches_are_told_apart_by_their_targets(part: Part) -> None:
    """Inputs may be augmented by what a rank draws; strings and empty batches tell nothing."""
    fingerprint = part("batch_split").fingerprint
    targets = np.arange(4.0)
    assert fingerprint((np.zeros(4), targets)) == fingerprint((np.ones(4), targets))
    assert fingerprint((np.zeros(4), targets)) != fingerprint((np.zeros(4), targets[::-1]))
    assert fingerprint({"x": np.arange(3), "name": np.array(["a", "b", "c"])}) == 8.0
    assert fingerprint(np.zeros((0, 2))) == 0.0


def test_batches_of_ranks_are_compared(part: Part) -> None:
    """Nearly the same numbers are the same; one more batch is not."""
    refuse_apart = part("batch_split").refuse_apart
    refuse_apart([[1e6, 0.0], [1e6 + 1, 0.0]], "training")
    for other in ([1e6, 1.0], [1e6]):
        with pytest.raises(RungError, match="training batches of the slots differ"):
            refuse_apart([[1e6, 0.0], other], "training")
