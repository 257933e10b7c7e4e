"""Merging facts with recorded decisions: live, at recovery and in an audit alike."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.events import Event, Payload, encode, fact
from rung.events.deadletter import FactRejected
from rung.events.experiment import ExperimentEnded, ExperimentResumed, ResumeRequested
from rung.ledger import Record
from rung.runtime import PartitionFold, Rejected
from rung.runtime.processor.image import Image, KeyFold, Stuck
from runtime.tally import Count, Tally, canceled, kill, pause, resume


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


def through_bytes(image: Image[Count]) -> Image[Count]:
    """Return an image whose keys were written and read."""
    keys = {
        key: msgspec.json.decode(msgspec.json.encode(known), type=KeyFold[Count])
        for key, known in image.keys.items()
    }
    return Image(image.facts, image.decisions, keys)


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
    first.recorded.appended(len(before))
    assert first.settled
    known = {key: found for key in "abc" if (found := first.known(key)) is not None}
    image = Image(first.facts, first.decisions, known)
    second = PartitionFold(Tally(), through_bytes(image))
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


def test_a_fact_that_breaks_its_process_stops_its_key_alone() -> None:
    """The key is folded no further, others are, and the reason is given once, by a decision."""
    fold = PartitionFold(Tally())
    folded = [fold.fold(r) for r in _records([kill(1, "a"), pause(2, "a"), pause(3, "b")])]

    assert [f.rejected.reason if f.rejected else None for f in folded] == [
        "ValueError: cannot fold a kill",
        None,
        None,
    ]
    assert [len(f.new) for f in folded] == [1, 0, 2]
    (rejection,) = folded[0].new
    assert rejection.data == FactRejected(
        topic="searches",
        key="a",
        partition=0,
        position=0,
        reader="searcher",
        reason="ValueError: cannot fold a kill",
        value=encode(kill(1, "a")).decode(),
    )
    assert (rejection.topic, rejection.causeposition, rejection.causeindex) == ("searches", 0, 0)
    stuck = Stuck(rejection.id, 0, "ValueError: cannot fold a kill")
    assert (fold.state("a"), fold.stuck) == (None, {"a": stuck})
    assert list(fold.states()) == [Count(pauses=1, decisions=2)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"{", "not an event"),
        (encode(pause(1)).replace(b"pause_requested.v1", b"pause_requested.v9"), "newer Rung"),
        (encode(pause(1)).replace(b'"experiment_id":"a"', b'"experiment_id":7'), "not an event"),
    ],
    ids=["no JSON", "unknown version", "wrong data"],
)
def test_a_fact_that_cannot_be_read_stops_its_key_alone(value: bytes, words: str) -> None:
    """What it says may matter, so nothing of its key is decided past it; other keys go on."""
    fold = PartitionFold(Tally())
    bad = fold.fold(Record("experiments", 0, 0, "a", value))
    behind = fold.fold(Record("experiments", 0, 1, "a", encode(pause(1))))
    other = fold.fold(Record("experiments", 0, 2, "b", encode(pause(1, "b"))))

    assert bad.rejected is not None
    assert words in bad.rejected.reason
    assert list(fold.stuck) == ["a"]
    assert (len(bad.new), behind.new, len(other.new)) == (1, [], 2)


def test_a_type_that_is_not_handled_is_skipped() -> None:
    """It reaches the processor neither as a fact nor as a decision, and changes nothing."""
    fold, decisions = _live([pause(1), canceled(2), pause(3)])

    assert fold.state("a") == Count(pauses=2, decisions=4)
    assert [event.causeposition for event in decisions] == [0, 0, 2, 2]


def test_a_key_that_ended_keeps_its_last_cause_alone() -> None:
    """Later facts change nothing; decisions that another replica writes late are dropped."""
    facts = [pause(1), pause(2), pause(3)]
    fold, decisions = _live(facts, Tally(last=2))

    assert [event.causeposition for event in decisions] == [0, 0, 1, 1]
    assert fold.known("a") == KeyFold(None, cause=(1, 1))
    assert (fold.state("a"), list(fold.states())) == (None, [])
    again = PartitionFold(Tally(last=2))
    again.record(_records([*decisions, *decisions]))
    assert [event for record in _records(facts) for event in again.fold(record).new] == []
    assert again.settled


def test_a_key_may_end_with_a_fact_of_which_nothing_is_decided() -> None:
    """Its state goes at once, and not with the next decision."""
    fold, decisions = _live([pause(1), resume(2)], Tally(0, last=1))

    assert decisions == []
    assert fold.known("a") == KeyFold(None)


class _Reopened(Tally):
    """A tally that decides a resumption also after the end."""

    reopened_by = ResumeRequested

    def reopened(self, key: str) -> Count:
        """Return a count that has ended."""
        assert key == "a"
        return Count(pauses=self.last)

    def decide(self, state: Count, fact: Any) -> list[Payload]:
        """Answer a resumption with one event."""
        if isinstance(fact, ResumeRequested):
            return [ExperimentResumed(experiment_id="a")]
        return super().decide(state, fact)


def test_some_facts_reopen_a_key_that_ended() -> None:
    """They are decided, each once; it has ended again then, and others still change nothing."""
    facts = [pause(1), resume(2), pause(3), resume(4)]
    fold, decisions = _live(facts, _Reopened(last=1))

    assert [event.causeposition for event in decisions] == [0, 0, 1, 3]
    assert fold.known("a") == KeyFold(None, cause=(3, 0))
    again = PartitionFold(_Reopened(last=1))
    again.record(_records([*decisions, *decisions]))
    assert [event for record in _records(facts) for event in again.fold(record).new] == []
    assert (again.settled, again.known("a")) == (True, KeyFold(None, cause=(3, 0)))


def test_a_key_that_ended_in_silence_reopens_at_recovery_as_it_did_live() -> None:
    """Its marks went with its state, so a repetition is decided again, also in a later fold."""
    facts = [resume(1), pause(2), resume(1)]
    fold, decisions = _live(facts, _Reopened(0, last=1))

    assert [event.causeposition for event in decisions] == [0, 2]
    again = PartitionFold(_Reopened(0, last=1))
    again.record(_records(decisions))
    assert [event for record in _records(facts) for event in again.fold(record).new] == []
    assert (again.settled, again.known("a")) == (True, fold.known("a"))


def test_a_release_that_does_not_reopen_takes_what_is_on_record() -> None:
    """Decisions of a newer one on a key that has ended for it move the last cause, and no more."""
    facts = [pause(1), resume(2), resume(3)]
    _, decisions = _live(facts, _Reopened(last=1))

    fold = PartitionFold(Tally(last=1))
    fold.record(_records(decisions))
    assert [event for record in _records(facts) for event in fold.fold(record).new] == []
    assert (fold.settled, fold.known("a")) == (True, KeyFold(None, cause=(2, 0)))


def test_what_a_processor_decided_is_no_fact_to_it() -> None:
    """A relay of another service may bring a decision onto the topic of the processor's facts."""
    ended = ExperimentEnded(experiment_id="a", state="completed", reason="")
    brought = fact(ended, source="/rung/gc", origin="L/searches/0/a", sequence=1, time="t")
    fold, decisions = _live([pause(1), brought, pause(2)])

    assert brought.topic == "experiments"
    assert [event.causeposition for event in decisions] == [0, 0, 2, 2]
    assert fold.state("a") == Count(pauses=2, decisions=4)


def _out_of_order(events: list[Event]) -> int:
    """Return how many decisions lie behind those on later facts."""
    causes = [event.causeposition or 0 for event in events]
    return sum(cause < max(causes[:at], default=-1) for at, cause in enumerate(causes))


@given(st.data())
def test_decisions_are_brought_as_they_are_needed(data: st.DataObject) -> None:
    """Scanned first and taken late, in any portions, they are folded as if all were there.

    Decisions on a key that was left alone for a while lie behind those on later facts.
    """
    keys = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
    facts = _records([pause(n, key) for n, key in enumerate(keys, start=1)])
    whole = PartitionFold(Tally())
    decisions = [event for record in facts for event in whole.fold(record).new]
    held = data.draw(st.sampled_from("abc"))
    since = data.draw(st.integers(0, len(decisions)))
    late = [event for event in decisions[since:] if event.key == held]
    on_record = [event for event in decisions if event not in late]
    place = data.draw(st.integers(min(since, len(on_record)), len(on_record)))
    on_record[place:place] = late
    doubled = data.draw(st.integers(0, len(on_record)))
    records = _records([*on_record, *on_record[:doubled]])

    fold = PartitionFold(Tally())
    assert fold.scan(records) == []
    most = 0
    new = []
    for record in facts:
        while fold.recorded.lacks(record.position):
            portion = data.draw(st.integers(1, 3))
            assert fold.take(records[fold.recorded.unread : fold.recorded.unread + portion]) == []
        most = max(most, sum(1 for _ in fold.recorded.waiting()))
        new += fold.fold(record).new

    assert new == []
    assert fold.settled
    assert most <= _out_of_order(on_record) + 2 + 3 + 2
    assert [fold.state(key) for key in "abc"] == [whole.state(key) for key in "abc"]


def test_a_decision_without_a_cause_stops_its_key_alone() -> None:
    """Whoever wrote it: nobody knows where it belongs, so its key is folded no further."""
    fold = PartitionFold(Tally())
    foreign = Record("searches", 0, 0, "a", encode(resume(1, "a")))
    (rejected,) = fold.record([foreign])
    folded = [fold.fold(record) for record in _records([pause(1, "a"), pause(1, "b")])]

    reason = "not a decision: event gateway/a#1 does not name its cause"
    assert rejected == Rejected(foreign, reason)
    assert {key: it.reason for key, it in fold.parked.items()} == {"a": rejected.reason}
    assert [len(each.new) for each in folded] == [0, 2]


def test_a_fold_is_not_settled_while_decisions_wait_for_their_facts() -> None:
    """A start from its snapshot would not read them again, and decide what is on record anew."""
    facts = _records([pause(1), pause(2)])
    _, then = _live([pause(1), pause(2)])
    fold = PartitionFold(Tally())
    fold.record(_records(then))
    fold.fold(facts[0])
    assert not fold.settled

    fold.fold(facts[1])
    assert fold.settled


def test_a_snapshot_that_lacks_a_decision_is_known_as_wrong() -> None:
    """Another replica's code may decide what this one's does not: then the record counts."""
    facts = _records([pause(1), pause(2)])
    _, then = _live([pause(1), pause(2)], Tally(generosity=1))
    silent = PartitionFold(Tally(generosity=0))
    for record in facts:
        silent.fold(record)
    found = silent.known("a")
    assert found is not None
    fold = PartitionFold(Tally(), Image(silent.facts, silent.decisions, {"a": found}))
    fold.record(_records(then))
    assert fold.contradicted

    whole = PartitionFold(Tally())
    whole.record(_records([*then, *then]))
    assert not whole.contradicted
