"""The scheduler's decisions, as tables of given facts, a fact, and what follows."""

from typing import get_args

import msgspec
import pytest

from rung.events import Event, Payload, encode, fact
from rung.events.allocation import PoolConfigured
from rung.events.deadletter import FactRejected
from rung.events.docs.examples import EXAMPLES
from rung.events.envelope import relayed
from rung.events.installation import PoolUpgraded
from rung.ledger import Record
from rung.runtime import PartitionFold, Processor
from rung.scheduler import Scheduler
from rung.scheduler.state import State
from support.scheduler.scenario import (
    POOL,
    Pool,
    brief,
    joined,
    left,
    lost,
    released,
    requested,
    withdrawn,
)

_TABLE: dict[str, tuple[list[Payload], Payload, list[str]]] = {
    "an idle slot is granted at once": (
        [joined("a", 2)],
        requested("e.0.1"),
        ["granted e.0.1: a[0]"],
    ),
    "what waits starts when an agent joins, in order of arrival": (
        [requested("e.0.1"), requested("e.1.1"), requested("e.2.1")],
        joined("a", 2),
        ["granted e.0.1: a[0]", "granted e.1.1: a[1]"],
    ),
    "a released slot goes to the first that waits": (
        [joined("a", 1), requested("e.0.1"), requested("e.1.1"), requested("e.2.1")],
        released("e.0.1", "a"),
        ["granted e.1.1: a[0]"],
    ),
    "agents learn that the search stopped the trial": (
        [joined("a", 1), requested("e.0.1")],
        withdrawn("e.0.1", final=True),
        ["signaled e.0.1 preempt: a (final)"],
    ),
    "a lower number is more important, whatever came first": (
        [requested("e.0.1", priority=42), requested("f.0.1", priority=1)],
        joined("a", 1),
        ["granted f.0.1: a[0]"],
    ),
    "nothing overtakes a more important one that waits for room": (
        [joined("a", 2), requested("e.0.1"), requested("f.0.1", 2, priority=10)],
        requested("e.1.1"),
        [],
    ),
    "nothing overtakes what came earlier with the same priority": (
        [joined("a", 2), requested("e.0.1"), requested("f.0.1", 2)],
        requested("e.1.1"),
        [],
    ),
    "what is withdrawn at the head of the queue lets those behind it go": (
        [joined("a", 2), requested("e.0.1"), requested("f.0.1", 2), requested("e.1.1")],
        withdrawn("f.0.1"),
        ["dropped f.0.1", "granted e.1.1: a[1]"],
    ),
    "a request that the pool could never serve blocks nobody": (
        [joined("a", 2), requested("f.0.1", 3, priority=1)],
        requested("e.0.1"),
        ["granted e.0.1: a[0]"],
    ),
    "it starts when an agent joins that can": (
        [joined("a", 2), requested("f.0.1", 3, priority=1), requested("e.0.1")],
        joined("b", 4),
        ["granted f.0.1: b[0,1,2]"],
    ),
    "a request that has become impossible blocks nobody any more": (
        [
            joined("a", 2),
            joined("b", 1),
            requested("e.0.1", 2),
            requested("f.0.1", 2),
            requested("g.0.1"),
        ],
        left("a"),
        ["lost e.0.1: agent a left", "granted g.0.1: b[0]"],
    ),
    "an experiment at its max_slots lets others pass": (
        [joined("a", 4), requested("e.0.1", max_slots=1), requested("e.1.1", max_slots=1)],
        requested("f.0.1"),
        ["granted f.0.1: a[1]"],
    ),
    "max_slots counts slots, not allocations": (
        [joined("a", 8), requested("e.0.1", 2, max_slots=3), requested("e.1.1", 2, max_slots=3)],
        released("e.0.1", "a"),
        ["granted e.1.1: a[0,1]"],
    ),
    "several that one fact lets start respect max_slots together": (
        [requested(f"e.{index}.1", max_slots=2) for index in range(3)],
        joined("a", 4),
        ["granted e.0.1: a[0]", "granted e.1.1: a[1]"],
    ),
    "a gang takes whole agents of equal size": (
        [joined("a", 2), joined("b", 2), joined("c", 2), requested("e.0.1")],
        requested("f.0.1", 4),
        ["granted f.0.1: b[0,1] c[0,1]"],
    ),
    "a gang that finds no room waits whole": (
        [joined("a", 2), joined("b", 2), requested("e.0.1")],
        requested("f.0.1", 4),
        [],
    ),
    "a gang waits for all the slots that it needs": (
        [joined("a", 2), joined("b", 2), requested("e.0.1"), requested("f.0.1", 4)],
        released("e.0.1", "a"),
        ["granted f.0.1: a[0,1] b[0,1]"],
    ),
    "a gang is over when all its agents have released it": (
        [joined("a"), joined("b"), requested("e.0.1", 8), requested("f.0.1", 8)],
        released("e.0.1", "b"),
        [],
    ),
    "and not before": (
        [
            joined("a"),
            joined("b"),
            requested("e.0.1", 8),
            requested("f.0.1", 8),
            released("e.0.1", "b"),
        ],
        released("e.0.1", "a"),
        ["granted f.0.1: a[0,1,2,3] b[0,1,2,3]"],
    ),
    "an allocation of no slots goes to the agent with the fewest": (
        [joined("a", 1), joined("b", 1), requested("e.0.1", 0)],
        requested("f.0.1", 0),
        ["granted f.0.1: b[]"],
    ),
    "an allocation of no slots needs no idle slot and waits for none": (
        [joined("a", 1), requested("e.0.1"), requested("e.1.1", priority=1)],
        requested("f.0.1", 0, priority=99),
        ["granted f.0.1: a[]"],
    ),
    "a waiting one that is withdrawn is dropped": (
        [requested("e.0.1")],
        withdrawn("e.0.1", "kill"),
        ["dropped e.0.1"],
    ),
    "a running one that is withdrawn is signaled": (
        [joined("a"), joined("b"), requested("e.0.1", 8)],
        withdrawn("e.0.1"),
        ["signaled e.0.1 preempt: a b"],
    ),
    "a part of a gang that failed ends the others": (
        [joined("a"), joined("b"), joined("c"), requested("e.0.1", 12)],
        released("e.0.1", "b", failed="rank 4: no memory"),
        ["signaled e.0.1 kill: a c"],
    ),
    "a part of a gang that its machine failed ends the others for that": (
        [joined("a"), joined("b"), requested("e.0.1", 8)],
        released("e.0.1", "b", failed="rank 4: the disk is full", machine=True),
        ["signaled e.0.1 kill: a (machine)"],
    ),
    "only the first failure is told": (
        [
            joined("a"),
            joined("b"),
            joined("c"),
            requested("e.0.1", 12),
            released("e.0.1", "b", failed="rank 4: no memory"),
        ],
        released("e.0.1", "a", failed="rank 0: connection closed"),
        [],
    ),
    "a failure on all agents that there are ends nothing": (
        [joined("a"), requested("e.0.1")],
        released("e.0.1", "a", failed="rank 0: no data"),
        [],
    ),
    "a failure of an earlier life of an agent ends nothing": (
        [joined("a"), joined("b", incarnation=2), requested("e.0.1", 8)],
        released("e.0.1", "b", incarnation=1, failed="rank 4: no memory"),
        [],
    ),
    "a kill follows a preemption where a part fails on its way out": (
        [joined("a"), joined("b"), requested("e.0.1", 8), withdrawn("e.0.1")],
        released("e.0.1", "a", failed="rank 2: disk full"),
        ["signaled e.0.1 kill: b"],
    ),
    "the agents that are done are not signaled": (
        [joined("a"), joined("b"), requested("e.0.1", 8), released("e.0.1", "a")],
        withdrawn("e.0.1", "kill"),
        ["signaled e.0.1 kill: b"],
    ),
    "kill escalates preempt": (
        [joined("a"), requested("e.0.1"), withdrawn("e.0.1")],
        withdrawn("e.0.1", "kill"),
        ["signaled e.0.1 kill: a"],
    ),
    "a repeated withdrawal says nothing new": (
        [joined("a"), requested("e.0.1"), withdrawn("e.0.1")],
        withdrawn("e.0.1"),
        [],
    ),
    "preempt after kill says nothing new": (
        [joined("a"), requested("e.0.1"), withdrawn("e.0.1", "kill")],
        withdrawn("e.0.1"),
        [],
    ),
    "what is unknown is not withdrawn": ([joined("a")], withdrawn("e.0.1"), []),
    "what is over is not withdrawn": (
        [joined("a"), requested("e.0.1"), released("e.0.1", "a")],
        withdrawn("e.0.1"),
        [],
    ),
    "a request repeated while it waits is one request": (
        [requested("e.0.1"), requested("e.0.1")],
        joined("a"),
        ["granted e.0.1: a[0]"],
    ),
    "a request repeated while it runs is one request": (
        [joined("a"), requested("e.0.1")],
        requested("e.0.1"),
        [],
    ),
    "an agent that is lost loses what it ran": (
        [joined("a"), requested("e.0.1"), requested("e.1.1")],
        lost("a"),
        [
            "lost e.0.1: agent a was silent for 31.2 s",
            "lost e.1.1: agent a was silent for 31.2 s",
        ],
    ),
    "an agent that starts again has lost what it ran and offers all its slots": (
        [joined("a", 1), requested("e.0.1"), requested("f.0.1")],
        joined("a", 1, incarnation=2),
        ["lost e.0.1: agent a was started again", "granted f.0.1: a[0]"],
    ),
    "an agent that starts again may offer other slots": (
        [joined("a", 1), requested("f.0.1", 3)],
        joined("a", 3, incarnation=2),
        ["granted f.0.1: a[0,1,2]"],
    ),
    "a repeated joining changes nothing": (
        [joined("a", 1), requested("e.0.1"), requested("f.0.1")],
        joined("a", 1),
        [],
    ),
    "a joining from an earlier life changes nothing": (
        [joined("a", 1, incarnation=2), requested("e.0.1"), requested("f.0.1")],
        joined("a", 1, incarnation=1),
        [],
    ),
    "a life that ended does not begin again": (
        [joined("a", 1), lost("a"), requested("e.0.1")],
        joined("a", 1),
        [],
    ),
    "a leaving from an earlier life changes nothing": (
        [joined("a", 1), joined("a", 1, incarnation=2), requested("e.0.1")],
        left("a"),
        [],
    ),
    "the loss of an earlier life changes nothing": (
        [joined("a", 1), joined("a", 1, incarnation=2), requested("e.0.1")],
        lost("a"),
        [],
    ),
    "a release from an earlier life frees nothing": (
        [
            joined("a", 1),
            joined("a", 1, incarnation=2),
            requested("e.0.1"),
            requested("f.0.1"),
        ],
        released("e.0.1", "a", incarnation=1),
        [],
    ),
    "a release of what is unknown frees nothing": (
        [joined("a", 1), requested("e.0.1"), requested("f.0.1")],
        released("g.0.1", "a"),
        [],
    ),
    "a release by an agent that has no part frees nothing": (
        [joined("a", 1), joined("b", 2), requested("e.0.1"), requested("f.0.1", 2)],
        released("e.0.1", "b"),
        [],
    ),
    "a repeated release frees nothing twice": (
        [
            joined("a", 1),
            requested("e.0.1"),
            released("e.0.1", "a"),
            requested("f.0.1"),
            requested("g.0.1"),
        ],
        released("e.0.1", "a"),
        [],
    ),
    "a gang is lost when one of its agents is, and the others keep their slots": (
        [joined("a"), joined("b"), requested("e.0.1", 8), requested("f.0.1", 4)],
        lost("a"),
        ["lost e.0.1: agent a was silent for 31.2 s"],
    ),
    "until they release them": (
        [joined("a"), joined("b"), requested("e.0.1", 8), requested("f.0.1", 4), lost("a")],
        released("e.0.1", "b"),
        ["granted f.0.1: b[0,1,2,3]"],
    ),
    "a gang is lost only once": (
        [joined("a"), joined("b"), requested("e.0.1", 8), lost("a")],
        lost("b"),
        [],
    ),
    "a lost allocation is not signaled": (
        [joined("a"), joined("b"), requested("e.0.1", 8), lost("a")],
        withdrawn("e.0.1", "kill"),
        [],
    ),
    "an agent that had released its part takes nothing with it": (
        [joined("a"), joined("b"), requested("e.0.1", 8), released("e.0.1", "a")],
        lost("a"),
        [],
    ),
    "what a lost allocation held no longer counts for max_slots": (
        [joined("a", 2), requested("e.0.1", max_slots=1), requested("e.1.1", max_slots=1)],
        joined("a", 2, incarnation=2),
        ["lost e.0.1: agent a was started again", "granted e.1.1: a[0]"],
    ),
    "an allocation of no slots is lost with its agent": (
        [joined("a", 1), requested("e.0.1", 0)],
        left("a"),
        ["lost e.0.1: agent a left"],
    ),
}


@pytest.mark.parametrize(("given", "when", "then"), _TABLE.values(), ids=_TABLE.keys())
def test_decisions(given: list[Payload], when: Payload, then: list[str]) -> None:
    """Given these facts, this fact has exactly these decisions."""
    pool = Pool()
    pool.tell(*given)

    assert pool.then(when) == then


@pytest.mark.parametrize(("given", "when", "then"), _TABLE.values(), ids=_TABLE.keys())
def test_decisions_after_a_restart(given: list[Payload], when: Payload, then: list[str]) -> None:
    """A scheduler that goes on from a snapshot decides the same."""
    pool = Pool()
    for each in given:
        pool.tell(each)
        pool.restart()

    assert pool.then(when) == then


def test_a_grant_carries_what_the_agent_needs() -> None:
    """A grant names the incarnations and hands the run's spec on as it was requested."""
    pool = Pool()
    pool.tell(joined("a", 2, incarnation=7))
    request = requested("e.0.1", 2)

    [grant] = pool.tell(request)

    assert grant.spec == request.spec  # type: ignore[union-attr]
    assert [share.incarnation for share in grant.shares] == [7]  # type: ignore[union-attr]


def test_nothing_is_left_of_what_is_over() -> None:
    """A pool in which all has ended holds no more than one in which nothing happened."""
    pool = Pool()
    pool.tell(
        joined("a"),
        joined("b"),
        requested("e.0.1", 8),
        requested("e.1.1", 0),
        requested("f.0.1", 4),
        withdrawn("f.0.1"),
        withdrawn("e.0.1"),
        released("e.0.1", "b"),
        released("e.0.1", "a"),
        released("e.1.1", "a"),
        requested("g.0.1"),
        left("b"),
        joined("a", incarnation=2),
    )

    expected = pool.scheduler.initial(pool.state.pool)
    expected.room, expected.runs_on = pool.state.room, {"a": []}
    expected.incarnations = {"a": 2, "b": 1}
    expected.arrivals = 4
    assert expected == pool.state
    assert pool.state.room.agents["a"].idle == [0, 1, 2, 3]


def test_slots_listed_twice_are_one() -> None:
    """An agent that names one slot twice does not get two allocations for it."""
    pool = Pool()
    twice = joined("a", 1)
    twice.slots.append(twice.slots[0])

    assert pool.then(twice, requested("e.0.1"), requested("e.1.1")) == ["granted e.0.1: a[0]"]


def test_events_of_other_topics_change_nothing() -> None:
    """Whatever else lies in the ledger passes through without effect."""
    pool = Pool()
    pool.tell(joined("a"))
    topics = {Scheduler.facts, Scheduler.decisions}
    others = [e for e in EXAMPLES if not topics & {e.TOPIC, *(relayed(type(e)) or ())}]

    assert pool.tell(*others) == []
    assert pool.state.room.agents.keys() == {"a"}
    assert len(others) + 19 == len(get_args(Payload))


def test_a_pool_s_level_is_raised_and_never_lowered() -> None:
    """A gateway that is behind may say a lower one late; nothing follows from either."""
    pool = Pool()
    assert pool.state.level == 1
    assert [pool.tell(PoolUpgraded(pool=POOL, level=level)) for level in (3, 2)] == [[], []]
    assert pool.state.level == 3


def test_the_scheduler_is_a_process() -> None:
    """The host takes it."""
    process: Processor[State] = Scheduler()

    assert (process.facts, process.decisions) == ("pools", "placements")


@pytest.mark.parametrize(
    ("policy", "options", "reason"),
    [
        ("lottery", {}, "there is no policy 'lottery'; there is priority"),
        ("priority", {"speed": 3}, "unknown field `speed`"),
    ],
)
def test_an_unknown_policy_stops_its_pool_alone(
    policy: str, options: dict[str, object], reason: str
) -> None:
    """What a newer release put on record stops the pool; nothing of it is decided."""
    fold = PartitionFold(Scheduler())
    facts: list[Payload] = [
        PoolConfigured(pool="default", policy=policy, options=options),
        joined("a"),
        requested("e.0.1"),
        msgspec.structs.replace(joined("b"), pool="other"),
        msgspec.structs.replace(requested("f.0.1"), pool="other"),
    ]
    decided: list[Event] = []
    for number, data in enumerate(facts):
        event = fact(data, source="/rung/x", origin="x", sequence=number, time="t")
        folded = fold.fold(Record(event.topic, 0, number, event.key, encode(event)))
        decided += folded.new

    rejected, granted = decided
    assert isinstance(rejected.data, FactRejected)
    assert brief(granted.data) == "granted f.0.1: b[0]"
    assert fold.stuck.keys() == {"default"}
    assert reason in fold.stuck["default"].reason
