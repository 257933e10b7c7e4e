"""What the gateway knows of one resource pool: its agents, what waits, what runs where.

A pure fold over `pools` (facts) and `placements` (decisions). An allocation waits from its request
until it is granted or dropped, and runs until its agents gave its slots back or were lost. What an
agent ran in an earlier incarnation is gone.
"""

from typing import Final, Literal, assert_never

from msgspec import Struct, field

from rung.events import Event, topic
from rung.events.allocation import (
    AgentJoined,
    AgentLeft,
    AgentLost,
    AllocationDropped,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    AllocationRequested,
    AllocationSignaled,
    AllocationWithdrawn,
    DrainRequested,
    MoveRequested,
    Share,
    Slot,
)


class Agent(Struct):
    """One agent, in its newest incarnation."""

    id: str
    hostname: str
    incarnation: int
    slots: list[Slot]
    state: Literal["joined", "draining", "left", "lost"]
    since: str
    reason: str | None = None
    """Why it is draining, or was before it went."""
    isolation: str = ""
    """What keeps its trials apart, as the agent said it."""


class Waiting(Struct):
    """An allocation that has no slots yet."""

    experiment_id: str
    trial_id: str
    run: int
    slots: int
    priority: int
    requested_at: str
    withdrawn: bool = False


class Running(Struct):
    """An allocation and the slots that it still holds."""

    shares: list[Share]


class Pool(Struct):
    """One resource pool."""

    name: str
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    waiting: dict[str, Waiting] = field(default_factory=dict[str, Waiting])
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    requests: dict[str, str] = field(default_factory=dict[str, str])
    """Origin of a client's request (`client/<key>`) → the trial and where it is to be moved."""


class PoolView:
    """The fold of the topics that are keyed by pool."""

    name: Final = "pools"
    facts: Final = topic.POOLS
    decisions: Final = (topic.PLACEMENTS,)
    version: Final = 4
    state_type: Final = Pool

    def initial(self, key: str) -> Pool:
        """Return a pool of which nothing is known."""
        return Pool(key)

    def evolve(self, state: Pool, event: Event) -> None:
        """Fold a fact or a decision."""
        data = event.data
        if isinstance(data, _OfAgent):
            _evolve_agent(state, event, data)
        elif isinstance(data, MoveRequested):
            if event.origin is not None and event.origin.startswith("client/"):
                state.requests.setdefault(event.origin, wish_of(data))
        elif isinstance(data, _OfAllocation):
            _evolve_allocation(state, event, data)


def wish_of(data: MoveRequested) -> str:
    """Return in words what a client asked for."""
    return f"move {data.trial_id} to {data.to or 'another agent'}"


_OfAgent = AgentJoined | DrainRequested | AgentLeft | AgentLost
_OfAllocation = (
    AllocationRequested
    | AllocationWithdrawn
    | AllocationReleased
    | AllocationGranted
    | AllocationSignaled
    | AllocationLost
    | AllocationDropped
)


def _evolve_agent(state: Pool, event: Event, data: _OfAgent) -> None:
    known = state.agents.get(data.agent_id)
    if known is not None and data.incarnation < known.incarnation:
        return
    match data:
        case AgentJoined():
            if known is not None and data.incarnation == known.incarnation:
                return
            state.agents[data.agent_id] = Agent(
                data.agent_id,
                data.hostname,
                data.incarnation,
                data.slots,
                "joined",
                event.time,
                isolation=data.isolation,
            )
        case DrainRequested():
            if known is not None and known.state == "joined":
                known.state, known.since, known.reason = "draining", event.time, data.reason
        case AgentLeft() | AgentLost():
            if known is not None:
                known.state = "left" if isinstance(data, AgentLeft) else "lost"
                known.since = event.time
        case _:
            assert_never(data)


def _evolve_allocation(state: Pool, event: Event, data: _OfAllocation) -> None:
    name = data.allocation_id
    match data:
        case AllocationRequested():
            state.waiting[name] = Waiting(
                experiment_id=data.experiment_id,
                trial_id=data.spec.trial_id,
                run=data.spec.run,
                slots=data.slots,
                priority=data.priority,
                requested_at=event.time,
            )
        case AllocationWithdrawn():
            if name in state.waiting:
                state.waiting[name].withdrawn = True
        case AllocationGranted():
            state.waiting.pop(name, None)
            state.running[name] = Running(data.shares)
        case AllocationSignaled():
            pass  # it holds its slots until it is released
        case AllocationReleased():
            _release(state, data)
        case AllocationLost() | AllocationDropped():
            state.waiting.pop(name, None)
            state.running.pop(name, None)
        case _:
            assert_never(data)


def _release(state: Pool, data: AllocationReleased) -> None:
    running = state.running.get(data.allocation_id)
    if running is None:
        return
    running.shares = [share for share in running.shares if share.agent_id != data.agent_id]
    if not running.shares:
        del state.running[data.allocation_id]
