"""Merging facts with recorded decisions: live, at recovery and in an audit alike."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rung.events import Event, encode
from rung.ledger import Record
from rung.runtime import PartitionFold
from rung.runtime.fold import Snapshot
from runtime.tally import Count, Tally, kill, pause, resume


def _records(events: list[Event]) -> list[Record]:
    return [
        Record(event.topic, 0, position, event.key, encode(event))
        for position, event in enumerate(events)
    ]


def _live(
    events: list[Event], process: Tally | None = None
) -> tuple[PartitionFold[Count], list[Event]]:
    fold = PartitionFold(process or Tally())
    return fold, [event for record in _records(events) for event in fold.fold(record).new]


def test_a_fact_is_folded_then_its_decisions() -> None:
    """Each decision carries its cause, and is folded before the next fact."""
    fold, decisions = _live([resume(1), pause(2), pause(3)])

    assert [(e.causeposition, e.causeindex) for e in decisions] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert fold.state("a") == Count(pauses=2, decisions=4)


def test_a_repeated_fact_is_dropped_at_the_door() -> None:
    """A fact whose origin's number was seen changes nothing and decides nothing."""
    fold, decisions = _live([pause(1), pause(1), pause(2), pause(1)])

    assert fold.state("a") == Count(pauses=2, decisions=4)
    assert [e.causeposition for e in decisions] == [0, 0, 2, 2]


def test_marks_are_kept_per_key() -> None:
    """One origin may interleave its numbers over several keys."""
    fold, _ = _live([pause(5, "a"), pause(4, "b"), pause(4, "a")])

    assert fold.state("a") == Count(pauses=1, decisions=2)
    assert fold.state("b") == Count(pauses=1, decisions=2)


def test_decisions_on_record_are_authoritative() -> None:
    """Newer code does not rewrite what older code decided."""
    facts = [pause(1), resume(2), pause(3)]
    _, then = _live(facts, Tally(generosity=1))

    fold = PartitionFold(Tally(generosity=2))
    fold.record(_records(then))
    new = [event for record in _records(facts[:2]) for event in fold.fold(record).new]

    assert new == []
    assert fold.state("a") == Count(pauses=1, decisions=1)


@given(st.data())
def test_recovery_completes_what_a_crash_cut_short(data: st.DataObject) -> None:
    """Wherever the decisions on record end, deciding on gives the run without a crash."""
    script = data.draw(st.lists(st.tuples(st.sampled_from("pr"), st.sampled_from("ab"))))
    facts = [
        pause(n, key) if kind == "p" else resume(n, key)
        for n, (kind, key) in enumerate(script, start=1)
    ]
    whole, decisions = _live(facts)
    cut = data.draw(st.integers(0, len(decisions)))

    fold = PartitionFold(Tally())
    fold.record(_records(decisions[:cut]))
    new = [event for record in _records(facts) for event in fold.fold(record).new]

    assert decisions[:cut] + new == decisions
    assert [fold.state(key) for key in "ab"] == [whole.state(key) for key in "ab"]


@given(st.data())
def test_a_snapshot_and_the_rest_are_the_whole(data: st.DataObject) -> None:
    """Going on from a snapshot that went through bytes differs in nothing from never stopping."""
    keys = data.draw(st.lists(st.sampled_from("abc"), min_size=1))
    facts = _records([pause(n, key) for n, key in enumerate(keys, start=1)])
    cut = data.draw(st.integers(0, len(facts)))
    whole = PartitionFold(Tally())
    expected = [event for record in facts for event in whole.fold(record).new]

    first = PartitionFold(Tally())
    before = [event for record in facts[:cut] for event in first.fold(record).new]
    first.decisions += len(before)
    value = msgspec.json.encode(first.snapshot())
    second = PartitionFold(Tally(), msgspec.json.decode(value, type=Snapshot[Count]))
    after = [event for record in facts[cut:] for event in second.fold(record).new]

    assert before + after == expected
    assert second.decisions == len(before)


def test_decisions_of_two_writers_count_once() -> None:
    """Two replicas that both decided leave duplicates, which readers drop."""
    facts = [pause(1), pause(2)]
    _, once = _live(facts)

    fold = PartitionFold(Tally())
    fold.record(_records([*once[:2], *once[:3], *once[1:]]))
    new = [event for record in _records(facts) for event in fold.fold(record).new]

    assert new == []
    assert fold.state("a") == Count(pauses=2, decisions=4)


def test_a_fact_that_breaks_its_process_quarantines_its_key_alone() -> None:
    """The key is folded no further, others are, and the reason is given once."""
    fold = PartitionFold(Tally())
    folded = [fold.fold(r) for r in _records([kill(1, "a"), pause(2, "a"), pause(3, "b")])]

    assert [f.rejected.reason if f.rejected else None for f in folded] == [
        "ValueError: cannot fold a kill",
        None,
        None,
    ]
    assert [len(f.new) for f in folded] == [0, 0, 2]
    assert fold.snapshot() is None


def test_a_fact_that_is_no_event_is_rejected_alone() -> None:
    """Bytes that cannot be decoded stop neither their key nor another."""
    fold = PartitionFold(Tally())
    bad = fold.fold(Record("experiments", 0, 0, "a", b"{"))
    good = fold.fold(Record("experiments", 0, 1, "a", encode(pause(1))))

    assert bad.rejected is not None
    assert "not an event" in bad.rejected.reason
    assert len(good.new) == 2


def test_a_decision_without_a_cause_quarantines_its_key_alone() -> None:
    """Whoever wrote it: nobody knows where it belongs, so its key is folded no further."""
    fold = PartitionFold(Tally())
    foreign = Record("searches", 0, 0, "a", encode(resume(1, "a")))
    (rejected,) = fold.record([foreign])
    folded = [fold.fold(record) for record in _records([pause(1, "a"), pause(1, "b")])]

    assert rejected == (foreign, "not a decision: event gateway/a#1 does not name its cause")
    assert fold.quarantined == {"a": rejected.reason}
    assert [len(each.new) for each in folded] == [0, 2]


def test_no_snapshot_while_decisions_wait_for_their_facts() -> None:
    """Whoever began from it would not read them again, and decide what is on record anew."""
    facts = _records([pause(1), pause(2)])
    _, then = _live([pause(1), pause(2)])
    fold = PartitionFold(Tally())
    fold.record(_records(then))
    fold.fold(facts[0])
    assert fold.snapshot() is None

    fold.fold(facts[1])
    assert fold.snapshot() is not None


def test_a_snapshot_that_lacks_a_decision_is_known_as_wrong() -> None:
    """Another replica's code may decide what this one's does not: then the record counts."""
    facts = _records([pause(1), pause(2)])
    _, then = _live([pause(1), pause(2)], Tally(generosity=1))
    silent = PartitionFold(Tally(generosity=0))
    for record in facts:
        silent.fold(record)
    fold = PartitionFold(Tally(), silent.snapshot())
    fold.record(_records(then))
    assert fold.contradicted

    whole = PartitionFold(Tally())
    whole.record(_records([*then, *then]))
    assert not whole.contradicted
