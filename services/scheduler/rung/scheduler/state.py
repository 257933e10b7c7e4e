"""What is known of one pool: its policy, its agents, what waits, what runs."""

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
    """Whether the searcher no longer wants it, so that nothing is owed to the trial."""
    lost: bool = False

    @property
    def stays(self) -> bool:
        """Whether it will keep its slots for as long as nobody interferes."""
        return self.signaled is None and not self.withdrawn and not self.lost


class Claim(Struct, kw_only=True):
    """What a trial that was asked to yield finds when it comes back with its next run."""

    arrival: int | None = None
    """Its place in the order; None: at the end."""
    avoid: list[str] = field(default_factory=list[str])
    """The agents that somebody wanted it away from."""
    to: str | None = None
    """The agent that somebody wanted it on."""


class Suspension(Struct, kw_only=True):
    """An agent that offers nothing for the moment."""

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
    """Agent id → the join that its present life began with, where that has a session."""
    suspended: dict[str, Suspension] = field(default_factory=dict[str, Suspension])
    """Agent id → what it offered before it was suspended."""
    refused: dict[str, JoinRefused] = field(default_factory=dict[str, JoinRefused])
    """Session → agents that live and use another one's id."""
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
    """Allocations that hold slots and are on their way out."""
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])
    """By trial, the oldest first."""
    arrivals: int = 0
    leaving: dict[str, Request] = field(default_factory=dict[str, Request])
    """Withdrawn while waiting; dropped by the same fact's decisions."""
    stricken: dict[str, str] = field(default_factory=dict[str, str])
    """Allocation id → what became of its agent; lost by the same fact's decisions."""
