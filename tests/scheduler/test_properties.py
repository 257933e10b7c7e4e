"""The scheduler against whatever may happen in a pool, in any order."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rung.events import Payload
from rung.events.allocation import (
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
)
from rung.events.trial import RunRequested
from rung.scheduler.state import State
from scheduler.reference import Reference
from support.scheduler.scenario import (
    Pool,
    brief,
    drain,
    joined,
    left,
    lost,
    move,
    released,
    requested,
    resources,
    resumed,
    suspended,
    withdrawn,
)

_AGENTS = st.sampled_from("abcd")
_LIVES = st.sampled_from([0, 0, 0, 0, 1, -1])
"""Which life a message comes from: the current one, mostly."""
_FAILURES = st.sampled_from(
    [{}, {}, {"failed": "rank 1: no memory"}, {"failed": "rank 1: the disk", "machine": True}]
)
"""What a release says of a failure; of half of them nothing."""
_EXPERIMENTS = st.sampled_from("xyz")
_PRIORITIES = st.sampled_from([1, 42, 42, 99])


class PoolMachine(RuleBasedStateMachine):
    """Tells the scheduler and the reference the same, and looks at the slots on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()
        self.reference = Reference()
        self.named: dict[str, RunRequested] = {}
        self.owners: dict[tuple[str, int, int], str] = {}
        """(agent, incarnation, slot) → allocation."""
        self.fates: dict[str, list[str]] = {}
        self.sessions: set[str] = set()

    def tell(self, fact: Payload) -> None:
        """Fold a fact in both, and compare."""
        scheduler, state = self.pool.scheduler, self.pool.state
        scheduler.evolve(state, fact)
        before = msgspec.json.encode(state)
        decisions = scheduler.decide(state, fact)
        assert msgspec.json.encode(state) == before, "decide changed the state"
        assert scheduler.decide(state, fact) == decisions
        for decision in decisions:
            scheduler.evolve(state, decision)
            self._note(decision)
        assert [brief(decision) for decision in decisions] == self.reference.tell(fact)
        assert scheduler.decide(state, left("nobody")) == [], "something could have started"

    def _note(self, decision: Payload) -> None:
        match decision:
            case AllocationGranted():
                self.fates.setdefault(decision.allocation_id, []).append("granted")
                for share in decision.shares:
                    for slot in share.slots:
                        place = (share.agent_id, share.incarnation, slot)
                        assert place not in self.owners, (place, decision)
                        self.owners[place] = decision.allocation_id
                given = sum(len(share.slots) for share in decision.shares)
                assert given == self.named[decision.allocation_id].slots
            case AllocationDropped():
                self.fates.setdefault(decision.allocation_id, []).append("dropped")
            case AllocationLost():
                self.fates[decision.allocation_id].append("lost")
            case _:
                pass

    def _life(self, agent_id: str, offset: int) -> int:
        return self.reference.incarnations.get(agent_id, 1) + offset

    @initialize(count=st.integers(1, 4), size=st.integers(1, 4))
    def open(self, count: int, size: int) -> None:
        """The pool begins with equal agents."""
        for agent in "abcd"[:count]:
            self.tell(joined(agent, size))

    @rule(
        agent=_AGENTS, slots=st.integers(0, 4), life=_LIVES, folder=st.sampled_from(["", "F", "G"])
    )
    def join(self, agent: str, slots: int, life: int, folder: str) -> None:
        """An agent joins, or one comes back, or another one of its name."""
        known = agent in self.reference.incarnations
        life = self._life(agent, life) if known else 1
        fact = joined(agent, slots, life, folder=folder)
        if fact.session not in self.sessions:  # the host drops repeated facts
            self.sessions.update({fact.session} - {""})
            self.tell(fact)

    @rule(agent=_AGENTS, life=_LIVES, fact=st.sampled_from([suspended, resumed]))
    def suspend(self, agent: str, life: int, fact: Callable[[str, int], Payload]) -> None:
        """An agent takes nothing new for a while, or takes something again."""
        self.tell(fact(agent, self._life(agent, life)))

    @rule(agent=_AGENTS, life=_LIVES, fact=st.sampled_from([left, lost]))
    def go(self, agent: str, life: int, fact: Callable[[str, int], Payload]) -> None:
        """An agent leaves or is lost."""
        self.tell(fact(agent, self._life(agent, life)))

    @rule(agent=_AGENTS, life=_LIVES)
    def drain(self, agent: str, life: int) -> None:
        """An agent will be gone soon."""
        self.tell(drain(agent, self._life(agent, life)))

    def _request(self, experiment: str, *wish: Any) -> None:
        fact = requested(f"{experiment}.{len(self.named)}.1", *wish)
        self.named[fact.allocation_id] = fact
        self.tell(fact)

    @rule(experiment=_EXPERIMENTS, slots=st.integers(0, 4), priority=_PRIORITIES)
    def request(self, experiment: str, slots: int, priority: int) -> None:
        """An experiment wants an allocation."""
        self._request(experiment, slots, priority)

    @rule(experiment=_EXPERIMENTS, agents=st.integers(2, 4), priority=_PRIORITIES)
    def request_gang(self, experiment: str, agents: int, priority: int) -> None:
        """An experiment wants several whole agents."""
        sizes = [len(slots) for slots in self.reference.slots.values()] or [1]
        self._request(experiment, agents * max(sizes), priority)

    @rule(
        experiment=_EXPERIMENTS,
        slots=st.integers(1, 4),
        priority=_PRIORITIES,
        max_slots=st.integers(1, 8),
    )
    def request_within_limits(
        self, experiment: str, slots: int, priority: int, max_slots: int
    ) -> None:
        """An experiment with a limit wants an allocation."""
        self._request(experiment, slots, priority, max_slots)

    @precondition(lambda self: self.reference.waiting or self.reference.running)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A request is repeated while it waits or runs."""
        known = [*(found.allocation_id for found in self.reference.waiting)]
        known += list(self.reference.running)
        self.tell(self.named[data.draw(st.sampled_from(known))])

    @precondition(lambda self: self.named)
    @rule(data=st.data(), how=st.sampled_from(["preempt", "kill"]))
    def withdraw(self, data: st.DataObject, how: Literal["preempt", "kill"]) -> None:
        """Any allocation that ever was is withdrawn."""
        self.tell(withdrawn(data.draw(st.sampled_from(list(self.named))), how))

    @rule(
        experiment=_EXPERIMENTS,
        priority=_PRIORITIES,
        max_slots=st.sampled_from([None, None, 1, 2, 3, 4, 8]),
    )
    def change_resources(self, experiment: str, priority: int, max_slots: int | None) -> None:
        """An experiment is to have another priority or limit."""
        self.tell(resources(experiment, priority, max_slots))
        held = sum(
            each.slots
            for each in self.pool.state.allocations.values()
            if each.experiment_id == experiment and each.stays
        )
        assert max_slots is None or held <= max_slots

    @precondition(lambda self: self.named)
    @rule(data=st.data(), to=st.sampled_from(["a", "b", None, None, "e"]))
    def move(self, data: st.DataObject, to: str | None) -> None:
        """Any trial that ever was is to be moved."""
        name = data.draw(st.sampled_from(list(self.named)))
        self.tell(move(name.rpartition(".")[0], to))

    @precondition(lambda self: self.reference.claims)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A trial that yielded wants its next run, perhaps before all agents gave theirs back."""
        trial = data.draw(st.sampled_from(sorted(self.reference.claims)))
        runs = [fact for fact in self.named.values() if fact.spec.trial_id == trial]
        fact = requested(
            f"{trial}.{len(runs) + 1}", runs[0].slots, runs[0].priority, runs[0].max_slots
        )
        if not any(run.allocation_id in self.reference.running for run in runs):
            self.named[fact.allocation_id] = fact
            self.tell(fact)

    @precondition(lambda self: self.reference.parts)
    @rule(data=st.data(), life=_LIVES, failed=_FAILURES)
    def release(self, data: st.DataObject, life: int, failed: dict[str, Any]) -> None:
        """An agent releases its part of an allocation."""
        name, agent = data.draw(st.sampled_from(list(self.reference.parts)))
        self._release(name, agent, self._life(agent, life), failed)

    @precondition(lambda self: self.named)
    @rule(data=st.data(), agent=_AGENTS, failed=_FAILURES)
    def release_out_of_turn(self, data: st.DataObject, agent: str, failed: dict[str, Any]) -> None:
        """Any agent releases any allocation."""
        name = data.draw(st.sampled_from(list(self.named)))
        self._release(name, agent, self._life(agent, 0), failed)

    def _release(self, name: str, agent: str, incarnation: int, failed: dict[str, Any]) -> None:
        for place in list(self.owners):
            if place[:2] == (agent, incarnation) and self.owners[place] == name:
                del self.owners[place]
        self.tell(released(name, agent, incarnation, **failed))

    @rule()
    def restart(self) -> None:
        """The service goes on from a snapshot that says the same."""
        before = self.pool.state
        self.pool.restart()
        assert before == self.pool.state

    @invariant()
    def max_slots_and_sizes_hold(self) -> None:
        """The state says of every agent and experiment what the reference says."""
        state: State = self.pool.state
        assert state.room.agents.keys() == self.reference.slots.keys()
        offers = {name: each.offer for name, each in state.suspended.items()}
        assert offers.keys() == self.reference.suspended.keys()
        for agent_id, offer in (state.room.agents | offers).items():
            assert offer.idle == sorted(self.reference.idle(agent_id))
        for experiment in "xyz":
            assert state.held.get(experiment, 0) == self.reference.held(experiment)
        assert state.stricken == {}
        assert state.leaving == {}
        assert state.allocations.keys() == self.reference.running.keys()
        assert {a: sorted(names) for a, names in state.runs_on.items()} == {
            agent: sorted(name for name, other in self.reference.parts if other == agent)
            for agent in (
                *self.reference.slots,
                *self.reference.drained,
                *self.reference.suspended,
            )
        }

    def teardown(self) -> None:
        """With agents that stay, everything that is possible comes to an end."""
        while self.reference.parts:
            name, agent = next(iter(self.reference.parts))
            self._release(name, agent, self._life(agent, 0), {})
        for request in self.reference.waiting:
            too_large = request.max_slots is not None and request.slots > request.max_slots
            assert too_large or not self.reference.possible(request.slots), request
        left_waiting = [request.allocation_id for request in self.reference.waiting]
        assert sorted(self.fates) == sorted(self.named.keys() - left_waiting)
        fates = [["granted"], ["dropped"], ["granted", "lost"]]
        assert all(fate in fates for fate in self.fates.values()), self.fates


PoolMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase
TestPool.__doc__ = "Whatever happens, the scheduler decides what the reference decides."
