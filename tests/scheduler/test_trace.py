"""A grant is traced to the request that it answers, not to whoever made room for it."""

from typing import Final

from rung.events import Event, Payload, encode, fact
from rung.ledger import Record
from rung.runtime import PartitionFold
from rung.runtime.processor.image import Image
from rung.scheduler import Scheduler
from rung.scheduler.state import State
from support.scheduler.scenario import joined, released, requested, withdrawn

_A: Final = f"00-{'a' * 32}-{'1' * 16}-00"
_B: Final = f"00-{'b' * 32}-{'1' * 16}-00"
_C: Final = f"00-{'c' * 32}-{'1' * 16}-00"


def _fold(
    fold: PartitionFold[State], *facts: tuple[Payload, str | None]
) -> list[tuple[str, str, str | None]]:
    decided: list[Event] = []
    for data, traceparent in facts:
        number = fold.facts
        event = fact(
            data, source="/rung/x", origin="x", sequence=number, time="t", traceparent=traceparent
        )
        record = Record(event.topic, 0, number, event.key, encode(event))
        decided += fold.fold(record).new
    return [(event.type.split(".")[2], event.subject, event.traceparent) for event in decided]


def test_a_decision_follows_from_what_its_cause_follows_from() -> None:
    """A request that is granted at once."""
    fold = PartitionFold(Scheduler())

    assert _fold(fold, (joined("n", slots=1), None), (requested("aaaaaaaa.0.1"), _A)) == [
        ("granted", "aaaaaaaa.0.1", _A)
    ]


def test_a_grant_to_one_who_waited_follows_from_its_own_request() -> None:
    """Whoever released or gave up a slot is somebody else."""
    fold = PartitionFold(Scheduler())
    _fold(fold, (joined("n", slots=1), None), (requested("aaaaaaaa.0.1"), _A))
    assert _fold(fold, (requested("bbbbbbbb.0.1"), _B), (requested("cccccccc.0.1"), None)) == []

    assert _fold(fold, (released("aaaaaaaa.0.1", "n"), None)) == [("granted", "bbbbbbbb.0.1", _B)]
    assert _fold(fold, (withdrawn("bbbbbbbb.0.1"), _C)) == [("signaled", "bbbbbbbb.0.1", _C)]
    assert _fold(fold, (released("bbbbbbbb.0.1", "n"), _C)) == [("granted", "cccccccc.0.1", None)]


def test_a_snapshot_remembers() -> None:
    """What was known before a restart is known after it."""
    before = PartitionFold(Scheduler())
    _fold(before, (joined("n", slots=1), None), (requested("aaaaaaaa.0.1"), _A))
    _fold(before, (requested("bbbbbbbb.0.1"), _B))
    known = before.known("default")
    assert known is not None
    after = PartitionFold(Scheduler(), Image(before.facts, keys={"default": known}))

    assert _fold(after, (released("aaaaaaaa.0.1", "n"), None)) == [("granted", "bbbbbbbb.0.1", _B)]


def test_what_is_remembered_is_bounded() -> None:
    """The oldest experiments of a pool are forgotten, so that its snapshot does not grow."""
    fold = PartitionFold(Scheduler())
    for number in range(1_500):
        _fold(fold, (requested(f"{number:08}.0.1"), _A))
    known = fold.known("default")

    assert known is not None
    traces = known.traces
    assert (len(traces), min(traces)) == (1_000, "00000500")
