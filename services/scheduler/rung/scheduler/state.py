"""The state of one pool: its policy, its agents, what waits, what runs."""

from typing import Any

from msgspec import Struct, field

from rung.events.allocation import AgentJoined, JoinRefused
from rung.events.trial import Withdrawal
from rung.scheduler.placement import Offer, Room
from rung.scheduler.queue import Demand, Queue, Ranked, Request


class Allocation(Demand, kw_only=True):
    """An allocation that was granted and is not over."""

    trial_id: str
    run: int
    parts: dict[str, list[int]]
    """Agent id → the slots it gives, until it released them."""
    signaled: Withdrawal | None = None
    withdrawn: bool = False
    """Whether the searcher no longer wants it, so that its trial gets no claim."""
    lost: bool = False

    @property
    def stays(self) -> bool:
        """Whether it keeps its slots until a signal, a withdrawal or a loss."""
        return self.signaled is None and not self.withdrawn and not self.lost


class Claim(Struct, kw_only=True):
    """Where the next run of a trial goes that was asked to yield or to move."""

    arrival: int | None = None
    """Its place in the order; None: at the end."""
    avoid: list[str] = field(default_factory=list[str])
    """The agents that it was moved away from."""
    to: str | None = None
    """The agent that it was moved to."""


class Suspension(Struct, kw_only=True):
    """An agent that offers nothing until it is resumed."""

    offer: Offer
    """What it will offer again: as in the room, but not in its indexes."""
    reason: str


class State(Struct, kw_only=True):
    """One pool."""

    pool: str
    policy: str = "priority"
    """The name of its policy, until `pool.configured` says another one."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The policy's."""
    level: int = 1
    """The logic level of its decisions."""
    room: Room = field(default_factory=Room)
    """The agents that are there, and their idle slots."""
    incarnations: dict[str, int] = field(default_factory=dict[str, int])
    """The highest incarnation of every agent that ever joined."""
    joins: dict[str, AgentJoined] = field(default_factory=dict[str, AgentJoined])
    """Agent id → the join that began its present life, where that has a session."""
    suspended: dict[str, Suspension] = field(default_factory=dict[str, Suspension])
    """Agent id → what it offered before it was suspended."""
    refused: dict[str, JoinRefused] = field(default_factory=dict[str, JoinRefused])
    """Session → refused agents that use the id of another one that is there."""
    runs_on: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Agent id → the allocations that have a part on it."""
    queue: Queue = field(default_factory=Queue)
    zero_slot_queue: Queue = field(default_factory=Queue)
    allocations: dict[str, Allocation] = field(default_factory=dict[str, Allocation])
    held: dict[str, int] = field(default_factory=dict[str, int])
    """Experiment id → how many slots it holds."""
    staying: list[Ranked] = field(default_factory=list[Ranked])
    """The allocations that hold slots and stay, sorted by rank."""
    departing: dict[str, None] = field(default_factory=dict[str, None])
    """Allocations that hold slots and were signaled, withdrawn or lost."""
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])
    """By trial, the oldest first."""
    arrivals: int = 0
    leaving: dict[str, Request] = field(default_factory=dict[str, Request])
    """Requests that were withdrawn; dropped by the same fact's decisions."""
    stricken: dict[str, str] = field(default_factory=dict[str, str])
    """Allocation id → why its agent is gone; lost by the same fact's decisions."""
