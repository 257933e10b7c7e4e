"""Adding a scheduling policy: one module (`fair_share.py`) and one line of the table.

docs/EXTENDING.md says the same, step by step.
"""

import asyncio
import contextlib

import msgspec
import pytest

from rung.events import topic
from rung.events.allocation import (
    AllocationGranted,
    AllocationSignaled,
    PoolConfigured,
)
from rung.events.experiment import Submission
from rung.events.trial import RunRequested
from rung.ledger import MemoryLedger
from rung.runtime import audit, host
from rung.scheduler import Scheduler
from rung.scheduler.policies import POLICIES
from rung.sim import Scenario, run
from rung.sim.workload import STORM, expanded
from scheduler.fair_share import FairShare
from scheduler.ledger_watch import next_of, writer
from support.scheduler.scenario import POOL, Pool, joined, left, released, requested


@pytest.fixture(autouse=True)
def _line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "fair_share", FairShare)


def _configured(policy: str = "fair_share", **options: object) -> PoolConfigured:
    return PoolConfigured(pool=POOL, policy=policy, options=options)


def _asked(name: str, owner: str, weight: float = 1.0, slots: int = 1) -> RunRequested:
    submission = Submission(owner=owner, weight=weight, time_ms=1)
    return msgspec.structs.replace(requested(name, slots), submission=submission)


def _pool(slots: int = 4) -> Pool:
    """Return a pool by fair share whose one agent trains for ada alone."""
    pool = Pool()
    pool.tell(_configured(), joined("a", slots))
    pool.tell(*(_asked(f"x.{index}.1", "ada") for index in range(slots)))
    return pool


def test_the_least_served_owner_goes_first() -> None:
    """Order is the policy's: not by arrival, but by what owners hold already."""
    pool = Pool()
    pool.tell(_configured(), *(_asked(f"x.{index}.1", "ada") for index in range(3)))
    pool.tell(*(_asked(f"y.{index}.1", "bob") for index in range(3)))
    assert pool.then(joined("a", 4)) == [
        "granted x.0.1: a[0]",
        "granted y.0.1: a[1]",
        "granted x.1.1: a[2]",
        "granted y.1.1: a[3]",
    ]


def test_an_owner_that_holds_more_yields() -> None:
    """Preemption is the policy's: across owners, the newest first, up to an equal part, once."""
    pool = _pool()
    assert pool.then(_asked("y.0.1", "bob")) == ["signaled x.3.1 preempt: a"]
    assert pool.then(_asked("y.1.1", "bob")) == ["signaled x.2.1 preempt: a"]
    assert pool.then(_asked("y.2.1", "bob"), left("nobody")) == []
    assert pool.then(released("x.3.1", "a")) == ["granted y.0.1: a[3]"]
    assert pool.then(_asked("x.3.2", "ada"), released("x.2.1", "a")) == ["granted y.1.1: a[2]"]


def test_weights_count() -> None:
    """An experiment of three times the weight gets three of four slots."""
    pool = _pool()
    asked = [_asked(f"y.{index}.1", "bob", weight=3.0) for index in range(4)]
    assert len(pool.then(*asked)) == 3


def test_options_are_the_policys() -> None:
    """What `pool.configured` says is what the policy is made with."""
    pool = _pool()
    pool.tell(_configured(preempts=False))
    assert pool.then(_asked("y.0.1", "bob")) == []
    assert pool.then(_configured()) == ["signaled x.3.1 preempt: a"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_switch_reorders_what_waits_and_what_runs(restarts: bool) -> None:  # noqa: FBT001
    """From the fact on the pool is the new policy's; switched back, it is as if nothing was."""
    pool = Pool()
    pool.tell(joined("a", 2))
    pool.tell(_asked("x.0.1", "ada"), _asked("x.1.1", "ada"), _asked("y.0.1", "bob"))
    first = requested("z.0.1", slots=1, priority=99)
    pool.tell(first)
    heads = list(pool.state.queue.heads)
    assert pool.then(_configured()) == ["signaled x.1.1 preempt: a"]
    if restarts:
        pool.restart()
    assert [head.rank for head in pool.state.queue.heads] == [(0, 3), (1, 2)]
    assert [place.rank for place in pool.state.staying] == [(1, 0)]
    assert pool.then(_configured("priority")) == []
    assert pool.state.queue.heads == heads
    assert pool.then(released("x.1.1", "a")) == ["granted y.0.1: a[1]"]


async def test_audits_are_exact_across_a_switch() -> None:
    """Each decision is decided again by the policy that its pool had at that time."""
    ledger = MemoryLedger()
    write = writer(ledger).write
    deciding = asyncio.create_task(host(ledger, Scheduler()))
    await write(joined("a", 2))
    for name, owner in (("x.0.1", "ada"), ("x.1.1", "ada"), ("y.0.1", "bob")):
        await write(_asked(name, owner))
    await next_of(ledger, topic.PLACEMENTS, AllocationGranted, count=2)
    await write(_configured())
    await next_of(ledger, topic.PLACEMENTS, AllocationSignaled)
    await write(_configured("priority"))
    await write(released("x.1.1", "a"))
    await next_of(ledger, topic.PLACEMENTS, AllocationGranted, count=3)
    deciding.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await deciding

    verdict = await audit(ledger, Scheduler())

    assert verdict.same
    assert (verdict.decisions, verdict.pending) == (4, 0)


def test_the_simulator_runs_it() -> None:
    """Two owners' searches end, one having made room for the other; every decision audits."""
    scenario = Scenario(config=expanded("random"), agents=(2, 1), owners=("ada", "bob"))
    strict = run(scenario, 2)
    shared = run(msgspec.structs.replace(scenario, policy="fair_share"), 2)

    assert (shared.state, strict.state) == ("completed", "completed")
    assert (shared.preempted > 0, strict.preempted) == (True, 0)
    assert shared.trials == strict.trials


@pytest.mark.sim
def test_it_holds_under_faults() -> None:
    """Crashes, repetitions, pauses and lost agents: both searches end, and audit."""
    for seed in range(20):
        scenario = Scenario(
            config=expanded("hyperband"),
            faults=STORM,
            owners=("ada", "bob"),
            policy="fair_share",
        )
        assert run(scenario, seed).state == "completed", f"seed {seed}"
