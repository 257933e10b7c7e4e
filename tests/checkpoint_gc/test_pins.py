"""Pins: each is answered, and a checkpoint whose pin was accepted is not retired."""

import pytest

from checkpoint_gc.scenario import (
    EXPERIMENT,
    answered,
    deleted,
    deleted_whole,
    ended,
    over,
    pinned,
    retention,
    stored,
    submitted,
    trial_id,
    unwanted,
    unwanted_whole,
)
from checkpoint_gc.test_deletion import Partition
from rung.events import Payload
from rung.events.checkpoint import CheckpointRetired

_THREE: list[Payload] = [
    submitted(0, 0, 9),
    stored("a", 1),
    stored("b", 2),
    stored("c", 3),
]
_GONE = f"experiment {EXPERIMENT} has no checkpoint a (any more)"
_WHOLE = f"experiment {EXPERIMENT} is deleted, and checkpoint a with it"


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        pytest.param([], "", id="it is there"),
        pytest.param([unwanted("a")], _GONE, id="retired, its files still there"),
        pytest.param([unwanted("a"), deleted("a")], _GONE, id="its files deleted"),
        pytest.param([retention(0, 0, 1)], _GONE, id="retired by a rule"),
        pytest.param([ended(), over()], "", id="of an experiment that has ended"),
        pytest.param(
            [ended(), over(), unwanted("a")], _GONE, id="retired after the end, not deleted yet"
        ),
        pytest.param([ended(), over(), unwanted_whole()], _WHOLE, id="all of it deleted"),
    ],
)
def test_a_pin_is_answered(before: list[Payload], refused: str) -> None:
    """By what was decided before it, and under its own name."""
    partition = Partition()
    partition.tell(*_THREE, *before)

    assert partition.tell(pinned("a")) == [answered("a", refused)]


@pytest.mark.parametrize("over_before", [True, False])
def test_what_was_accepted_stays(*, over_before: bool) -> None:
    """No request and no rule retires it; what was refused has no effect."""
    partition = Partition()
    end: list[Payload] = [ended(), over()]
    partition.tell(*_THREE, *(end if over_before else []))
    assert partition.tell(pinned("a")) == [answered("a")]

    decided = partition.tell(
        unwanted("a"), retention(0, 0, 0, a=trial_id(0)), *([] if over_before else end)
    )
    retired = [it.checkpoint_id for it in decided if isinstance(it, CheckpointRetired)]
    assert "a" not in retired


def test_a_refused_pin_keeps_no_state() -> None:
    """The state of an experiment that has ended is gone once the files are, as without the pin."""
    partition = Partition()
    partition.tell(*_THREE, ended(), over(), unwanted("a"))
    assert partition.tell(pinned("a")) == [answered("a", _GONE)]
    partition.tell(deleted("a"))
    assert partition.state is None

    partition.tell(unwanted_whole())
    assert partition.tell(pinned("b")) != [answered("b")]
    partition.tell(deleted_whole())
    assert partition.state is None
