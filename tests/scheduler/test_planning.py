"""What planning costs: steps that grow with the pool, not with its square."""

import random
from typing import Any

import pytest

from rung.scheduler.placement import Room
from scheduler.scenario import Pool, brief, joined, requested


class _Steps:
    """Counts what is done to the rooms that a decision is planned on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("take", "give_back", "fit"):
            monkeypatch.setattr(Room, name, self._counting(getattr(Room, name)))
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

    assert counts[128] > 128 * 8, "nearly every trial is considered"
    assert counts[128] < 8 * counts[16] * 1.3, counts
