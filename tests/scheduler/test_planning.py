"""What planning costs: steps that grow with the pool, not with its square."""

import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rung.scheduler.placement import Room
from rung.scheduler.policies.planning import Gaps, clear
from rung.scheduler.queue import Request
from rung.scheduler.state import Allocation, State
from scheduler.clearing import clear_plainly
from support.scheduler.scenario import Pool, brief, joined, requested


class _Steps:
    """Counts what is done to the rooms that a decision is planned on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("take", "give_back", "fit"):
            monkeypatch.setattr(Room, name, self._counting(getattr(Room, name)))
        for name in ("take", "give_back"):
            monkeypatch.setattr(Gaps, name, self._counting(getattr(Gaps, name)))
        monkeypatch.setattr(Room, "fork", self._counting(Room.fork, each_agent=True))

    def _counting(self, method: Any, *, each_agent: bool = False) -> Any:
        def counted(room: Room, *arguments: Any) -> Any:
            self.count += len(room.agents) if each_agent else 1
            return method(room, *arguments)

        return counted


def _full(agents: int) -> Pool:
    """Return a pool of agents of 8 slots, full of trials of one slot and of mixed importance."""
    draw = random.Random(1)  # noqa: S311 - reproducible, not secret
    pool = Pool()
    pool.tell(*(joined(f"agent-{number:04}", 8) for number in range(agents)))
    for number in range(8 * agents):
        pool.tell(requested(f"low.{number}.1", priority=draw.randint(10, 99)))
    return pool


def test_steps_of_gang_preemption_grow_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times the pool costs about eight times the steps to clear two agents for a gang.

    Nearly every trial is considered, for two agents have to become wholly idle.
    """
    pools = {agents: _full(agents) for agents in (16, 128)}
    steps = _Steps(monkeypatch)
    counts = {}
    for agents, pool in pools.items():
        steps.count = 0
        fact = requested("high.0.1", slots=16, priority=1)
        pool.scheduler.evolve(pool.state, fact)
        decisions = pool.scheduler.decide(pool.state, fact)
        counts[agents] = steps.count

        assert len(decisions) == 16
        assert len({brief(each).rpartition(" ")[2] for each in decisions}) == 2

    assert counts[128] < 8 * counts[16] * 1.3, counts
    assert counts[128] < 2 * 128 * 8, "each trial is given back once, and few are tried again"


_GANGS = st.sampled_from([1, 1, 1, 2, 3, 4])


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=7),
    wants=st.lists(_GANGS, max_size=20),
    slots=st.integers(1, 16),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_what_yields_is_what_trying_each_one_finds(
    sizes: list[int], wants: list[int], slots: int, data: st.DataObject
) -> None:
    """In any pool and any order the same yield as if each was tried with the whole room.

    Some agents are drained, gangs hold parts of several, and some may not be asked.
    """
    pool = State(pool="default")
    for number, size in enumerate(sizes):
        pool.room.join(f"a{number}", 1, range(size))
        pool.runs_on[f"a{number}"] = []
    for number, want in enumerate(wants):
        shares = pool.room.fit(data.draw(st.sampled_from([want, want, 2 * max(sizes)])))
        for share in shares or []:
            pool.room.take(share)
            pool.runs_on[share.agent_id].append(f"x.{number}.1")
        if shares:
            parts = {share.agent_id: share.slots for share in shares}
            pool.open(f"x.{number}.1", _allocation(number, parts))
    for agent_id in data.draw(st.sets(st.sampled_from(sorted(pool.room.agents)), max_size=2)):
        pool.room.leave(agent_id)
    request = _request(slots)
    assume(pool.room.fit(slots) is None)
    order = data.draw(st.permutations(sorted(pool.allocations)))
    order = order[: data.draw(st.integers(0, len(order)))]
    plain, room = pool.room.fork(), pool.room.fork()

    expected = clear_plainly(pool, request, plain, order)

    assert list(clear(pool, request, room, order)) == list(expected)
    assert not expected or room.agents == plain.agents
    if expected:
        assert room.fit(slots) == plain.fit(slots)
        assert room.fit(slots) is not None


def _allocation(number: int, parts: dict[str, list[int]]) -> Allocation:
    return Allocation(
        experiment_id="x",
        slots=sum(map(len, parts.values())),
        priority=42,
        max_slots=None,
        arrival=number,
        trial_id=f"x.{number}",
        run=1,
        parts=parts,
    )


def _request(slots: int) -> Request:
    fact = requested("y.0.1", slots, 1)
    return Request(
        allocation_id="y.0.1",
        experiment_id="y",
        slots=slots,
        priority=1,
        max_slots=None,
        arrival=99,
        spec=fact.spec,
    )


def test_a_move_looks_at_no_other_trial() -> None:
    """However many wait, only those of the trial are looked up to move it."""
    looked_up = []

    class Watched(dict[str, str]):
        def __iter__(self) -> Any:
            raise AssertionError("all that waits is looked at")

        def items(self) -> Any:
            raise AssertionError("all that waits is looked at")

        def __getitem__(self, name: str) -> str:
            looked_up.append(name)
            return super().__getitem__(name)

    pool = _full(2)
    pool.tell(*(requested(f"x.{number}.1", priority=99) for number in range(500)))
    pool.state.queue.line_of = Watched(pool.state.queue.line_of)

    found = pool.state.queue.of_trial("x.499")

    assert found is not None
    assert found.allocation_id == "x.499.1"
    assert looked_up == ["x.499.1"]
