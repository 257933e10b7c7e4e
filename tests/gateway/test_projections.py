"""The merge of facts and decisions: the same view however the records arrive."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rung.events.trial import (
    TrialMetadataSet,
    TrialProgressReported,
    TrialStatusSet,
    TrialValidated,
)
from rung.gateway.projections.experiments import ExperimentProjection, read_experiment
from rung.ledger import Record
from rung.runtime.projection import Merge
from support.gateway.scenario import EXPERIMENT, History, play, shown, stored, submitted, tables
from support.gateway.tally import counted

METHODS = [
    {"name": "async_halving", "stop_once": False},
    {"name": "async_halving", "stop_once": True},
    {"name": "hyperband"},
    {"name": "random"},
]


def _whole(history: History) -> Merge:
    """Fold a history as its searcher did: each fact, then what it caused."""
    fold = tables()
    fold.hold([it.record for it in history.decisions])
    assert fold.fold([it.record for it in history.facts]) == []
    return fold


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_view_agrees_with_the_searcher(seed: int, method: dict[str, object]) -> None:
    """Trials, their units and restarts are those that the searcher knows, stale reports or not."""
    history = play(seed, **method)
    known = history.searcher.state(EXPERIMENT)
    view = shown(_whole(history))

    assert (known is None) == (view.ended is not None)
    if known is not None and known.experiment is not None:
        found = [(t.index, t.run, t.restarts) for t in view.trials]
        assert [(t.index, t.run, t.restarts) for t in known.experiment.trials] == found


def test_searches_played_end() -> None:
    """The scenario is worth something: most searches that it plays come to an end."""
    ended = [shown(_whole(play(seed))).ended for seed in range(20)]

    assert ended.count("completed") >= 15


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_any_arrival_gives_the_same(seed: int, data: st.DataObject) -> None:
    """Batches of any size, decisions seen late, restarts from a snapshot: the view is the same."""
    method: dict[str, object] = data.draw(st.sampled_from(METHODS))
    history = play(seed, **method)
    expected = shown(_whole(history))
    fold = tables()
    facts, decisions = history.facts, history.decisions
    while fold.positions["experiments"] < len(facts) or fold.positions["searches"] < len(
        decisions
    ):
        start = fold.positions["experiments"]
        count = data.draw(st.integers(1, 40))
        batch = facts[start : start + count]
        # At least what was there when the facts were appended, at most all that is there.
        horizon = batch[-1].moment if batch else facts[-1].moment + len(decisions)
        least = sum(1 for it in decisions if it.moment < horizon)
        brought = fold.read_up_to("searches")
        upto = max(least, brought, data.draw(st.integers(0, len(decisions))))
        fold.hold([it.record for it in decisions[brought:upto]])
        fold.fold([it.record for it in batch])
        if data.draw(st.booleans()):
            fold = _restarted(fold)

    assert shown(fold) == expected
    assert expected.tally == counted(expected)


def _restarted(fold: Merge) -> Merge:
    return Merge(ExperimentProjection(), fold.db, 0)


def test_repeated_fact_counts_once() -> None:
    """A fact that its origin sent twice is folded once."""
    history = History()
    history.write(submitted(max_trials=1), origin="client/x")
    history.decide()
    data = TrialValidated(
        experiment_id=EXPERIMENT,
        trial_id=f"{EXPERIMENT}.0",
        run=1,
        steps_completed=10,
        metrics={"error": 0.5},
    )
    history.write(data)
    history.write(data, repeat=True)

    assert len(shown(_whole(history)).trials[0].validations) == 1


def test_first_of_two_writers_wins() -> None:
    """A decision whose cause is not later than the last one seen is dropped."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    before = _whole(history)
    again = [
        replace(it.record, position=len(history.decisions) + it.record.position)
        for it in history.decisions
    ]
    fold = tables()
    fold.hold([*(it.record for it in history.decisions), *again])
    assert fold.fold([it.record for it in history.facts]) == []

    assert shown(before) == shown(fold)


def test_unreadable_record_stops_nothing() -> None:
    """A record that is no event is rejected with a reason, and the ones around it are folded."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    fold = tables()
    fold.hold(
        [
            Record("searches", 0, 0, EXPERIMENT, b"{"),
            *(replace(it.record, position=it.record.position + 1) for it in history.decisions),
        ]
    )
    rejected = fold.fold(
        [history.facts[0].record, Record("experiments", 0, 1, EXPERIMENT, b"nonsense")]
    )

    assert [item.record.value for item in rejected] == [b"{", b"nonsense"]
    assert len(shown(fold).trials) == 3
    assert fold.positions["searches"] == len(history.decisions) + 1


def test_decision_waits_for_its_fact() -> None:
    """A decision is not folded before the fact that caused it, nor counted as read."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    fold = tables()
    fold.hold([it.record for it in history.decisions])
    fold.fold([])

    assert read_experiment(fold.db, EXPERIMENT) is None
    assert fold.positions["searches"] == 0
    assert fold.read_up_to("searches") == len(history.decisions)


def test_orphan_is_folded_in_the_end() -> None:
    """In a ledger that lacks the fact, the decision is folded all the same when told to."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    fold = tables()
    fold.hold([it.record for it in history.decisions])
    fold.fold_orphans()

    assert fold.positions["searches"] == len(history.decisions)
    assert len(shown(fold).trials) == 3


def test_view_that_raises_rejects_the_record_alone() -> None:
    """A record that breaks the view is rejected; the key goes on."""
    history = History()
    history.write(submitted(), origin="client/x")
    history.decide()
    fold = tables()
    skipping = [it.record for it in history.decisions][5:]  # a trial is missing
    fold.hold([replace(record, position=n) for n, record in enumerate(skipping)])
    rejected = fold.fold([history.facts[0].record])
    history.write(stored(f"{EXPERIMENT}.0", 1, 10, 0))
    fold.fold([history.facts[1].record])

    assert rejected
    assert all("AssertionError" in item.reason for item in rejected)
    assert list(shown(fold).checkpoints) == ["c0"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_decisions_of_two_replicas_count_once(seed: int, data: st.DataObject) -> None:
    """Whatever a replica that woke late wrote once more, and wherever, the view is the same."""
    history = play(seed)
    expected = shown(_whole(history))
    decisions = [it.record for it in history.decisions]
    for _ in range(data.draw(st.integers(1, 4))):
        end = data.draw(st.integers(0, len(decisions)))
        start = data.draw(st.integers(0, end))
        late = data.draw(st.integers(end, len(decisions)))
        decisions[late:late] = decisions[start:end]
    numbered = [replace(record, position=place) for place, record in enumerate(decisions)]
    facts = [it.record for it in history.facts]
    cut = data.draw(st.integers(0, len(facts)))

    fold = tables()
    fold.hold(numbered)
    assert fold.fold(facts[:cut]) == []
    assert fold.fold(facts[cut:]) == []
    assert shown(fold) == expected


def test_a_trial_as_its_script_describes_it() -> None:
    """Status, metadata and progress are those of the newest report of the run that counts."""
    history = History()
    history.write(submitted())
    history.decide()
    trial_id, spec = next(iter(history.running.items()))
    about: dict[str, Any] = {"experiment_id": EXPERIMENT, "trial_id": trial_id, "run": spec.run}
    stale = about | {"run": spec.run - 1}
    for data in (
        TrialStatusSet(**about, status="loading"),
        TrialStatusSet(**about, status="training"),
        TrialMetadataSet(**about, metadata={"rows": 3}),
        TrialProgressReported(**about, progress=0.25),
        TrialProgressReported(**stale, progress=0.75),
    ):
        history.write(data)
        history.decide()
    trial = shown(_whole(history)).trials[0]
    assert (trial.status, trial.metadata, trial.progress) == ("training", {"rows": 3}, 0.25)
