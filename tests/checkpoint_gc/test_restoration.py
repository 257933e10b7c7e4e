"""Deletions that can be taken back: decided by facts that say how late it is, and by no clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_gc.scenario import (
    EXPERIMENT,
    answered,
    deleted_whole,
    ended,
    over,
    pinned,
    so_late,
    stored,
    submitted,
    unwanted_whole,
    wanted_back,
)
from checkpoint_gc.test_deletion import Partition
from rung.events import Payload
from rung.events.experiment import (
    DeletionDue,
    DeletionRequested,
    DeletionScheduled,
    ExperimentRestored,
    ExperimentRetired,
    RestorationRequested,
)

_OVER: list[Payload] = [submitted(0, 0, 3), stored("a", 1), stored("b", 2), ended(), over()]
_RETIRED = ExperimentRetired(experiment_id=EXPERIMENT, trials=1)
_RESTORED = ExperimentRestored(experiment_id=EXPERIMENT, reason="")


def _scheduled(until_ms: int, *despite: str) -> DeletionScheduled:
    return DeletionScheduled(
        experiment_id=EXPERIMENT, trials=1, until_ms=until_ms, despite=list(despite)
    )


@pytest.fixture(params=[False, True], ids=["on", "restarted"])
def partition(request: pytest.FixtureRequest) -> Partition:
    """Return a fold that goes on, and one that begins again before each fact."""
    return Partition(restarts=request.param)


def test_it_goes_once_its_time_is_over(partition: Partition) -> None:
    """The state of an experiment that has ended comes back for it, and stays until then."""
    partition.tell(*_OVER)
    assert partition.state is None

    assert partition.tell(unwanted_whole(until_ms=100)) == [_scheduled(100)]
    assert partition.state is not None
    assert partition.tell(so_late(99)) == []
    assert partition.tell(so_late(100)) == [_RETIRED]
    assert partition.tell(so_late(100), deleted_whole()) == []
    assert partition.state is None
    assert partition.tell(so_late(101), wanted_back()) == []


def test_a_user_takes_it_back(partition: Partition) -> None:
    """Nothing is due then, and it can be deleted anew, until another time."""
    partition.tell(*_OVER, unwanted_whole(until_ms=100))

    assert partition.tell(wanted_back()) == [_RESTORED]
    assert partition.state is None
    assert partition.tell(so_late(200), wanted_back()) == []
    assert partition.tell(unwanted_whole(until_ms=300)) == [_scheduled(300)]
    assert partition.tell(so_late(200)) == []
    assert partition.tell(so_late(300)) == [_RETIRED]


def test_at_once_overtakes_the_delay(partition: Partition) -> None:
    """A second request with a delay changes nothing; one without a delay deletes."""
    partition.tell(*_OVER, unwanted_whole(until_ms=100))

    assert partition.tell(unwanted_whole(until_ms=200)) == []
    assert partition.tell(unwanted_whole()) == [_RETIRED]
    partition.tell(deleted_whole())
    assert partition.state is None


def test_it_waits_for_the_end(partition: Partition) -> None:
    """A request that comes before the end that the gateway saw is decided with it, or is gone."""
    partition.tell(*_OVER[:-1], unwanted_whole(until_ms=100))
    assert partition.tell(so_late(100)) == []
    assert partition.tell(over()) == [_scheduled(100)]
    assert partition.tell(so_late(101)) == [_RETIRED]

    other = Partition()
    other.tell(*_OVER[:-1], unwanted_whole(until_ms=100))
    assert other.tell(wanted_back(), over()) == []


def test_a_pin_brings_it_back(partition: Partition) -> None:
    """Whose submission found the checkpoint while it was there; the request named the others."""
    partition.tell(*_OVER, pinned("a"))
    assert partition.tell(unwanted_whole(until_ms=100)) == []
    assert partition.tell(unwanted_whole("p0000000", until_ms=100)) == [
        _scheduled(100, "p0000000")
    ]
    assert partition.tell(pinned("b")) == [answered("b")]
    assert partition.tell(wanted_back()) == [_RESTORED]

    other = Partition()
    other.tell(*_OVER, unwanted_whole(until_ms=100))
    [decided, answer] = other.tell(pinned("a"))
    assert answer == answered("a")
    assert isinstance(decided, ExperimentRestored)
    assert "p0000000" in decided.reason
    assert other.tell(so_late(100)) == []


_FACTS = st.one_of(
    st.integers(0, 9).map(so_late),
    st.just(wanted_back()),
    st.one_of(st.none(), st.integers(0, 9)).map(lambda it: unwanted_whole(until_ms=it)),
)


@given(st.lists(_FACTS, max_size=12))
def test_only_what_nobody_took_back_goes(facts: list[Payload]) -> None:
    """Beside a reference: one variable, which holds the time until which it can be taken back."""
    partition = Partition()
    partition.tell(*_OVER)
    until_ms: int | None = None
    for fact in facts:
        gone = any(isinstance(it.data, ExperimentRetired) for it in partition.decisions)
        decided = partition.tell(fact)
        if gone:
            break
        match fact:
            case DeletionRequested(until_ms=None):
                expected: list[Payload] = [_RETIRED]
            case DeletionRequested(until_ms=int(wanted)) if until_ms is None:
                expected, until_ms = [_scheduled(wanted)], wanted
            case RestorationRequested() if until_ms is not None:
                expected, until_ms = [_RESTORED], None
            case DeletionDue(at_ms=at_ms) if until_ms is not None and at_ms >= until_ms:
                expected = [_RETIRED]
            case _:
                expected = []
        assert decided == expected
