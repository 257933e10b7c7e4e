"""The collector's decisions, as tables of given facts, a fact, and what is retired."""

from typing import get_args

import msgspec
import pytest

from checkpoint_gc.scenario import (
    Experiment,
    damaged,
    deleted,
    ended,
    exited,
    over,
    pinned,
    released,
    run_lost,
    stored,
    submitted,
    validated,
)
from rung.checkpoint_gc import CheckpointGC
from rung.checkpoint_gc.state import State
from rung.events import Payload
from rung.events.docs.examples import EXAMPLES
from rung.events.envelope import relayed
from rung.methods.random_search import Options
from rung.runtime import Processor

_NONE = submitted(0, 0, 0)

_TABLE: dict[str, tuple[list[Payload], Payload, list[str]]] = {
    "the newest two of a live trial stay whatever the policy": (
        [_NONE, stored("a", 1)],
        stored("b", 2),
        [],
    ),
    "the third newest of a live trial goes": (
        [_NONE, stored("a", 1), stored("b", 2)],
        stored("c", 3),
        ["a"],
    ),
    "newest means most steps, not latest arrival": (
        [_NONE, stored("b", 2), stored("c", 3)],
        stored("a", 1),
        ["a"],
    ),
    "of two at one step the later one is newer": (
        [_NONE, stored("b", 2), stored("a", 2)],
        stored("c", 3),
        ["b"],
    ),
    "the best of the trial stays": (
        [submitted(), validated(1, 0.1), stored("a", 1), validated(2, 0.2), stored("b", 2)],
        stored("c", 3),
        [],
    ),
    "until a better one comes": (
        [submitted(), validated(1, 0.2), stored("a", 1), stored("b", 2), stored("c", 3)],
        validated(3, 0.1),
        ["a"],
    ),
    "the validation may come after the checkpoint": (
        [submitted(), stored("a", 1), validated(1, 0.1), stored("b", 2), validated(2, 0.2)],
        stored("c", 3),
        [],
    ),
    "larger may be better": (
        [
            submitted(smaller_is_better=False),
            validated(1, 0.2),
            stored("a", 1),
            validated(2, 0.1),
            stored("b", 2),
            stored("c", 3),
        ],
        stored("d", 4),
        ["b"],
    ),
    "when a trial ends, what only a live trial needs goes": (
        [submitted(), validated(1, 0.1), stored("a", 1), stored("b", 2), stored("c", 3)],
        ended(),
        ["b"],
    ),
    "with a policy of nothing, nothing stays when the trial ends": (
        [_NONE, validated(1, 0.1), stored("a", 1), stored("b", 2)],
        ended(),
        ["a", "b"],
    ),
    "the latest n stay": (
        [submitted(0, 0, 3), *[stored(f"c{steps}", steps) for steps in range(5)]],
        ended(),
        [],
    ),
    "no more than the latest n": (
        [submitted(0, 0, 3), *[stored(f"c{steps}", steps) for steps in range(3)]],
        stored("c3", 3),
        ["c0"],
    ),
    "an equally good one with fewer steps is better": (
        [submitted(0, 1, 0), validated(1, 0.5), stored("b", 1), validated(2, 0.5), stored("a", 2)],
        ended(),
        ["a"],
    ),
    "of equally good ones at one step the smaller id is better": (
        [submitted(0, 1, 0), validated(1, 0.5), stored("b", 1), stored("a", 1)],
        ended(),
        ["b"],
    ),
    "one without a validation is never best": (
        [submitted(0, 1, 0), stored("a", 1), validated(2, 9.0), stored("b", 2)],
        ended(),
        ["a"],
    ),
    "a value that is not a number gives no rank": (
        [submitted(0, 1, 0), validated(1, "NaN"), stored("a", 1)],
        ended(),
        ["a"],
    ),
    "nor does an infinite one, however good": (
        [submitted(0, 1, 0), validated(1, "-Infinity"), stored("a", 1)],
        ended(),
        ["a"],
    ),
    "nor another metric": (
        [submitted(0, 1, 0), validated(1, None), stored("a", 1)],
        ended(),
        ["a"],
    ),
    "the best of the experiment stays, its trial ended": (
        [submitted(1, 0, 0), validated(1, 0.1), stored("a", 1)],
        ended(),
        [],
    ),
    "until another trial has a better one": (
        [submitted(1, 0, 0), validated(1, 0.2), stored("a", 1), ended(), stored("b", 1, trial=1)],
        validated(1, 0.1, trial=1),
        ["a"],
    ),
    "two that become the best at once push two out": (
        [
            submitted(2, 0, 0),
            validated(1, 0.5, trial=1),
            stored("a", 1, trial=1),
            ended(1),
            validated(1, 0.6, trial=2),
            stored("b", 1, trial=2),
            ended(2),
            stored("x", 1),
            stored("y", 1),
        ],
        validated(1, 0.1),
        ["a", "b"],
    ),
    "a checkpoint that is found damaged goes": (
        [submitted(), stored("a", 1), stored("b", 2)],
        damaged("b"),
        ["b"],
    ),
    "a damaged one does not count as one of the newest two": (
        [_NONE, pinned("c"), stored("a", 1), stored("c", 3), damaged("c")],
        stored("b", 2),
        [],
    ),
    "nor as the best": (
        [submitted(0, 1, 0), validated(1, 0.1), validated(2, 0.2), pinned("a"), stored("a", 1)],
        damaged("a"),
        [],
    ),
    "a damaged one of another trial goes all the same": (
        [submitted(), stored("a", 1, trial=1)],
        damaged("a", trial=0),
        ["a"],
    ),
    "an unknown damaged one is of no concern": ([submitted()], damaged("x"), []),
    "a pinned one stays": ([_NONE, pinned("a"), stored("a", 1)], ended(), []),
    "also when it was pinned after it was stored": (
        [_NONE, stored("a", 1), pinned("a")],
        ended(),
        [],
    ),
    "also when it is damaged": ([_NONE, pinned("a"), stored("a", 1)], damaged("a"), []),
    "one stored after the end of its trial is judged like others": (
        [submitted(), stored("b", 2), ended()],
        stored("a", 1),
        ["a"],
    ),
    "and may push others out": ([submitted(), stored("b", 2), ended()], stored("c", 3), ["b"]),
    "a given-up run does not push out what the next one starts from": (
        [_NONE, stored("a", 1), stored("b", 2), run_lost(), stored("x", 8)],
        stored("y", 9),
        [],
    ),
    "its checkpoints stand beside the newest two in time": (
        [
            _NONE,
            stored("a", 1),
            stored("b", 2),
            exited(),
            stored("x", 8),
            stored("y", 9),
        ],
        stored("c", 3, run=2),
        ["a"],
    ),
    "a repeated checkpoint is one": (
        [_NONE, stored("a", 1), stored("b", 2)],
        stored("b", 2),
        [],
    ),
    "a retired one does not come back": (
        [_NONE, stored("a", 1), stored("b", 2), stored("c", 3)],
        stored("a", 1),
        [],
    ),
    "a checkpoint is judged by its own run's validation": (
        [
            submitted(0, 1, 0),
            validated(1, 0.1, run=1),
            stored("a", 1, run=1),
            validated(1, 0.9, run=2),
            stored("b", 1, run=2),
        ],
        ended(),
        ["b"],
    ),
    "or by the newest other run's, if its own had none": (
        [
            submitted(0, 1, 0),
            stored("a", 1, run=1),
            stored("b", 2, run=1),
            validated(1, 0.1, run=10),
            validated(1, 0.9, run=9),
            validated(2, 0.5, run=10),
        ],
        ended(),
        ["b"],
    ),
    "a validation reported again replaces the one before": (
        [
            submitted(0, 1, 0),
            stored("a", 1),
            stored("b", 2),
            validated(1, 0.1),
            validated(2, 0.2),
            validated(1, 0.3),
        ],
        ended(),
        ["a"],
    ),
    "without a value, the one nearest to the best validation is the best": (
        [
            submitted(0, 1, 0),
            *(validated(100, 0.9), stored("a", 140), validated(200, 0.1), stored("b", 240)),
            *(validated(300, 0.5), stored("c", 340)),
        ],
        stored("d", 440),
        [],
    ),
    "of two as near the later": (
        [submitted(0, 1, 0), stored("a", 150), validated(200, 0.1), stored("b", 250)],
        ended(),
        ["a"],
    ),
    "a better validation moves it": (
        [
            submitted(0, 1, 0),
            *(validated(100, 0.2), stored("a", 110), stored("b", 210), stored("c", 310)),
        ],
        validated(300, 0.1),
        ["a"],
    ),
    "a validation reported again moves it": (
        [
            submitted(0, 1, 0),
            *(validated(100, 0.1), validated(300, 0.2), stored("a", 110), stored("b", 310)),
            stored("c", 410),
        ],
        validated(100, 0.3, run=2),
        ["a"],
    ),
    "one with a value is the best whatever is near": (
        [
            submitted(0, 1, 0),
            *(validated(100, 0.2), stored("a", 100), validated(200, 0.1), stored("b", 210)),
        ],
        ended(),
        ["b"],
    ),
    "no best is asked for": (
        [submitted(0, 0, 0), validated(100, 0.1), stored("a", 110)],
        ended(),
        ["a"],
    ),
    "the deletion of files decides nothing": (
        [_NONE, stored("a", 1), stored("b", 2), stored("c", 3)],
        deleted("a"),
        [],
    ),
}


@pytest.mark.parametrize(("given", "when", "then"), _TABLE.values(), ids=_TABLE.keys())
def test_decisions(given: list[Payload], when: Payload, then: list[str]) -> None:
    """Given these facts, this fact retires exactly these checkpoints."""
    experiment = Experiment()
    experiment.tell(*given)

    assert experiment.then(when) == then


@pytest.mark.parametrize(("given", "when", "then"), _TABLE.values(), ids=_TABLE.keys())
def test_decisions_after_a_restart(given: list[Payload], when: Payload, then: list[str]) -> None:
    """A collector that goes on from a snapshot decides the same."""
    experiment = Experiment()
    for fact in given:
        experiment.tell(fact)
        experiment.restart()

    assert experiment.then(when) == then


_HELD: dict[str, tuple[list[Payload], Payload, list[str]]] = {
    "what the search holds stays": ([_NONE, stored("a", 1), stored("b", 2)], stored("c", 3), []),
    "until it is released": (
        [_NONE, stored("a", 1), stored("b", 2), stored("c", 3)],
        released("a"),
        ["a"],
    ),
    "what is released stays while a rule names it": (
        [_NONE, stored("a", 1), stored("b", 2)],
        released("a"),
        [],
    ),
    "the end of its trial releases nothing": ([_NONE, stored("a", 1)], ended(), []),
    "a damaged one is held, too: the search says when it is over": (
        [_NONE, stored("a", 1)],
        damaged("a"),
        [],
    ),
    "what came after the end of its run was never held": (
        [_NONE, exited(), ended()],
        stored("a", 1),
        ["a"],
    ),
    "releasing what is gone changes nothing": ([_NONE, stored("a", 1)], released("x"), []),
}


@pytest.mark.parametrize(("given", "when", "then"), _HELD.values(), ids=_HELD.keys())
def test_holds(
    given: list[Payload], when: Payload, then: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where trials start from each other's checkpoints, these are held until they are released."""
    monkeypatch.setattr(Options, "SHARES", True)
    experiment = Experiment()
    for fact in given:
        experiment.tell(fact)
        experiment.restart()

    assert experiment.then(when) == then


def test_reasons_name_the_rules() -> None:
    """A person reads why a checkpoint went."""
    experiment = Experiment()
    experiment.tell(submitted(2, 1, 3), *[stored(f"c{steps}", steps) for steps in range(3)])
    rules = "not among best 1 of trial, latest 3 of trial, best 2 of experiment"

    live, damage = experiment.tell(stored("c3", 3), damaged("c3"))
    experiment.tell(stored("c4", 4), ended())
    [over] = experiment.tell(stored("c9", 0))

    assert live.reason == f"{rules}, newest 2 of a live trial"
    assert damage.reason == "damaged: model.pt is missing"
    assert over.reason == rules


def test_nothing_is_left_of_what_was_deleted() -> None:
    """What is retired and deleted is forgotten; a pin or a deletion out of turn does no harm."""
    experiment = Experiment()
    experiment.tell(_NONE, validated(1, 0.1), stored("a", 1), ended(), pinned("a"))
    assert experiment.state.retired == {"a": "k3f9x2ma.0"}

    experiment.tell(deleted("a"), deleted("x"))

    assert experiment.state.retired == {}
    assert experiment.state.trial_of == {}
    assert experiment.state.ranking == []
    assert experiment.state.trials["k3f9x2ma.0"].checkpoints == {}


def test_the_state_ends_with_the_experiment() -> None:
    """Once the experiment has ended nothing is decided any more, and the state may go."""
    experiment = Experiment()
    experiment.tell(submitted(), stored("a", 1), exited(), ended())
    assert not experiment.collector.ended(experiment.state)

    assert experiment.then(over()) == []
    assert experiment.collector.ended(experiment.state)


def test_the_state_outlives_the_experiment_while_a_lost_run_may_be_heard_of() -> None:
    """What an agent that was taken for lost had stored is judged when it comes at last."""
    experiment = Experiment()
    facts = (submitted(0, 0, 1), stored("a", 1), run_lost(), stored("b", 2, run=2), exited(2))
    experiment.tell(*facts, ended(), over())
    assert not experiment.collector.ended(experiment.state)

    assert experiment.then(stored("late", 1)) == ["late"]
    experiment.tell(exited(1), deleted("a"))
    assert not experiment.collector.ended(experiment.state)
    experiment.tell(deleted("late"))
    assert experiment.collector.ended(experiment.state)


def test_the_state_outlives_the_experiment_while_checkpoints_are_under_way() -> None:
    """A killed run does not wait for them; they are judged when they come."""
    experiment = Experiment()
    experiment.tell(submitted(0, 0, 1), stored("a", 1), exited(1, 0, "a", "b", "c"))
    experiment.tell(ended(), over())
    experiment.restart()
    assert not experiment.collector.ended(experiment.state)

    assert experiment.then(stored("b", 2)) == ["a"]
    assert not experiment.collector.ended(experiment.state)
    assert experiment.then(stored("c", 3)) == ["b"]
    assert not experiment.collector.ended(experiment.state)
    experiment.tell(deleted("a"), deleted("b"))
    assert experiment.collector.ended(experiment.state)


def test_a_checkpoint_that_never_arrives_is_not_waited_for() -> None:
    """Its agent reports that it could not be stored."""
    experiment = Experiment()
    experiment.tell(submitted(0, 0, 1), stored("a", 1), exited(1, 0, "b"), ended(), over())
    assert not experiment.collector.ended(experiment.state)

    assert experiment.then(damaged("b")) == []
    assert experiment.collector.ended(experiment.state)


def test_a_run_that_reported_its_end_before_it_was_lost_is_not_waited_for() -> None:
    """The report of a run's end may overtake the news that its agent was lost."""
    experiment = Experiment()
    experiment.tell(submitted(), exited(), run_lost(), ended(), over())

    assert experiment.collector.ended(experiment.state)


def test_nothing_is_retired_without_a_policy() -> None:
    """Events of an experiment whose submission is not known retire nothing."""
    experiment = Experiment()

    assert experiment.then(stored("a", 1), validated(1, 1.0), damaged("a"), ended()) == []


def test_a_configuration_that_no_gateway_passes_is_refused() -> None:
    """A policy that cannot be read raises, so that the host retires nothing by a guess."""
    event = submitted()
    event.config["checkpoint_storage"]["save_trial_best"] = "many"

    with pytest.raises(msgspec.ValidationError, match="save_trial_best"):
        Experiment().tell(event)


def test_policy_defaults_are_those_of_determined() -> None:
    """A configuration without `checkpoint_storage` keeps 0 / 1 / 1."""
    experiment = Experiment()
    event = submitted()
    del event.config["checkpoint_storage"]
    experiment.tell(event)
    policy = experiment.state.policy

    assert policy is not None
    assert (policy.experiment_best, policy.trial_best, policy.trial_latest) == (0, 1, 1)


def test_events_of_other_topics_change_nothing() -> None:
    """Whatever else lies in the ledger passes through without effect."""
    experiment = Experiment()
    topics = {CheckpointGC.facts, CheckpointGC.decisions}
    others = [
        event for event in EXAMPLES if not topics & {event.TOPIC, *(relayed(type(event)) or ())}
    ]

    assert experiment.tell(*others) == []
    assert experiment.state == experiment.collector.initial("k3f9x2ma")
    assert len(EXAMPLES) == len(get_args(Payload))


def test_the_collector_is_a_process() -> None:
    """The host takes it."""
    process: Processor[State] = CheckpointGC()

    assert (process.facts, process.decisions) == ("experiments", "retirements")
